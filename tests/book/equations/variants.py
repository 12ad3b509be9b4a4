"""The executed equations of the chapter on variants: each within the layer, against the package."""

import jax.numpy as jnp
import numpy as np

from mha_book.multihead import MultiHeadParams, variants
from mha_book.multihead.latent import LatentParams, compress, expanded_attention
from mha_book.multihead.layer import multi_head_attention
from mha_book.rope import rotary_angles, rotate
from tests.book.equations import executed

LAYER, LATENT = ("variant-layer",), ("variant-layer", "variant-latent")
PAIRS = ("h", "kg")
T, D, N, K, G, H, C, P, R, B = 4, 5, 6, 2, 3, 3, 4, 2, 3, 2  # R to a block of B blocks
SHAPES = {
    "X": (T, D), "W_Q": (N, D, H), "W_K": (N, D, H), "W_V": (N, D, C), "W_O": (N, C, D)
}  # fmt: skip


def draw(rng, **changed):
    """Weights of the equations by name; None leaves one out."""
    shapes = {name: shape for name, shape in {**SHAPES, **changed}.items() if shape is not None}
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


def heads_second(w):
    """The package has the heads of a projection behind the width that comes in."""
    return jnp.moveaxis(w, -3, -2)


def flat(w):
    """One axis of heads in the place of those of groups and members."""
    return jnp.reshape(w, (N, *w.shape[2:]))


def layer(w):
    return MultiHeadParams(*(heads_second(w[n]) for n in ("W_Q", "W_K", "W_V")), w["W_O"])


def plain(rng, function, **weights):
    w = draw(rng, **weights)
    return w, {"Y": function(layer(w), *(w[name] for name in weights), w["X"])}


@executed("variant-layer")
def whole(rng):
    w = draw(rng)
    return {**w, "d_k": H}, {"Y": multi_head_attention(layer(w), w["X"])}


@executed("variant-grouped", within=LAYER, split=PAIRS)
def grouped(rng):
    w = draw(rng, W_Q=(K, G, D, H), W_K=(K, D, H), W_V=(K, D, C), W_O=(K, G, C, D))
    one = {**w, "W_Q": flat(w["W_Q"]), "W_O": flat(w["W_O"])}
    return {**w, "d_k": H}, {"Y": multi_head_attention(layer(one), w["X"])}


def turns():
    """The rotation of each position as a matrix, and its angles."""
    angles = rotary_angles(jnp.arange(T), P)
    turned = [rotate(jnp.broadcast_to(row, (T, P)), angles) for row in jnp.eye(P)]
    return jnp.stack(turned, axis=-1).astype(float), angles


def latent_layer(w, **changed):
    """The package's weights of a latent layer from those of the equations."""
    queries = jnp.concatenate((w["W_Q"], w["W_QR"]), axis=-1)
    given = {"w_q": heads_second(queries), "w_c": w["W_Z"], "w_kr": w["W_KR"]}
    given |= {"w_uk": jnp.moveaxis(w["W_UK"], 0, 1), "w_uv": jnp.moveaxis(w["W_UV"], 0, 1)}
    return LatentParams(**given | {"w_o": w["W_O"]} | changed)


ROTATED = {"W_K": None, "W_V": None, "W_KR": (D, P), "W_QR": (N, D, P)}
SCALE = {"d_q": H + P}


@executed("variant-latent", within=LAYER)
def latent(rng):
    w = draw(rng, **ROTATED, W_Z=(D, R), W_UK=(N, R, H), W_UV=(N, R, C))
    turn, angles = turns()
    params = latent_layer(w)
    y = expanded_attention(params, w["X"], compress(params, w["X"], angles), angles)
    return {**w, **SCALE, "R": turn}, {"Y": y}


@executed("variant-low-rank", within=LATENT)
def low_rank(rng):
    w = draw(rng, **ROTATED, W_Z=(B, D, R), W_UK=(B, N, R, H), W_UV=(B, N, R, C))
    turn, angles = turns()
    together = {
        "w_c": jnp.concatenate([*w["W_Z"]], axis=-1),
        "w_uk": jnp.concatenate([*jnp.swapaxes(w["W_UK"], 1, 2)]),
        "w_uv": jnp.concatenate([*jnp.swapaxes(w["W_UV"], 1, 2)]),
    }
    params = latent_layer({**w, "W_UK": w["W_UK"][0], "W_UV": w["W_UV"][0]}, **together)
    y = variants.low_rank_attention(params, w["X"], angles, B)
    return {**w, **SCALE, "R": turn, "n_r": B}, {"Y": y}


@executed("variant-grouped-latent", within=LATENT, split=PAIRS)
def grouped_latent(rng):
    pairs = {"W_Q": (K, G, D, H), "W_O": (K, G, C, D), "W_QR": (K, G, D, P)}
    own = {"W_Z": (K, D, R), "W_UK": (K, G, R, H), "W_UV": (K, G, R, C)}
    w = draw(rng, **{**ROTATED, **pairs, **own})
    turn, angles = turns()
    one = {name: flat(w[name]) if name in {*pairs, "W_UK", "W_UV"} else w[name] for name in w}
    together = {"w_c": jnp.concatenate([*w["W_Z"]], axis=-1)}
    for name, key in (("w_uk", "W_UK"), ("w_uv", "W_UV")):  # (K, G, R, ·) to (K·R, N, ·)
        blocks = jnp.swapaxes(w[key], 1, 2)  # (K, R, G, ·): a head's rows lie in its own block
        together[name] = jnp.concatenate([jnp.tile(block, (1, K, 1)) for block in blocks])
    params = latent_layer(one, **together)
    y = variants.grouped_latent_attention(params, w["X"], angles, K)
    return {**w, **SCALE, "R": turn}, {"Y": y}


@executed("variant-tied", within=LAYER, split=PAIRS)
def tied(rng):
    w = draw(
        rng, W_Q=(K, G, D, H), W_K=(K, D, H), W_V=(K, D, C), W_O=(K, G, C, D),
        W_KR=(D, P), W_QR=(K, G, D, P), W_OK=(K, G, H, D),
    )  # fmt: skip
    turn, angles = turns()
    params = MultiHeadParams(
        w_q=heads_second(flat(jnp.concatenate((w["W_Q"], w["W_QR"]), axis=-1))),
        w_k=jnp.zeros((D, K, H + P)),
        w_v=heads_second(jnp.concatenate((w["W_K"], w["W_V"]), axis=-1)),
        w_o=flat(jnp.concatenate((w["W_OK"], w["W_O"]), axis=-2)),
    )
    y = variants.tied_attention(params, w["W_KR"], w["X"], angles)
    return {**w, **SCALE, "R": turn}, {"Y": y}


@executed("variant-tensor", within=LAYER)
def tensor(rng):
    w = draw(
        rng, W_K=None, W_V=None, W_GK=(D, N, 2), W_FK=(D, 2, H), W_GV=(D, N, 3), W_FV=(D, 3, C)
    )
    own = jnp.eye(N) * N  # a query head of its own for each: the queries are those of the layer
    factors = (w[name] for name in ("W_GK", "W_FK", "W_GV", "W_FV"))
    params = variants.TensorProductParams(own, heads_second(w["W_Q"]), *factors, w["W_O"])
    y = variants.tensor_product_attention(params, w["X"])
    return {**w, "d_k": H, "n_K": 2, "n_V": 3}, {"Y": y}


@executed("variant-factorized", within=LAYER)
def factorized(rng):
    w = draw(rng, W_Q=(N, R, H), W_R=(D, R), W_K=(D, H), W_V=(D, C))
    one = {**w, "W_K": w["W_K"][None], "W_V": w["W_V"][None]}
    y = variants.multi_matrix_attention(layer(one), w["W_R"], w["X"])
    return {**w, "d_k": H}, {"Y": y}


@executed("variant-differential", within=LAYER)
def differential(rng):
    w = draw(rng, W_2=(N, D, H), W_g=(D, N))
    second = heads_second(w["W_2"])
    y = variants.differential_attention(layer(w), second, w["W_g"], w["X"])
    return {**w, "d_k": H}, {"Y": y}


@executed("variant-subtraction")
def subtraction(rng):
    one, two = (jnp.asarray(rng.random(size=(N, T, T))) for _ in range(2))
    share, value = jnp.asarray(rng.random(size=(N, T))), jnp.asarray(rng.normal(size=(N, T, C)))
    wanted = jnp.einsum("hij,hjc->hic", one - share[..., None] * two, value)
    return {"A_1": one, "A_2": two, "g": share, "V": value}, {"O": wanted}


@executed("variant-gated", within=LAYER)
def gated(rng):
    w = draw(rng, W_G=(D, N, C))
    return {**w, "d_k": H}, {"Y": variants.gated_attention(layer(w), w["W_G"], w["X"])}


@executed("variant-mixture", within=LAYER)
def mixture(rng):
    w, router = draw(rng), rng.normal(size=(D, N))
    logits = np.asarray(w["X"]) @ router
    share = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    least = np.sort(logits, axis=-1)[:, -4, None]
    given = {**w, "d_k": H, "g": np.where(logits >= least, share, 0).T}
    y = variants.mixture_of_heads(layer(w), jnp.asarray(router), w["X"], 4)
    return given, {"Y": y}


@executed("variant-talking", within=LAYER)
def talking(rng):
    w = draw(rng, W_S=(N, N), W_A=(N, N))
    y = variants.talking_heads_attention(layer(w), w["W_S"], w["W_A"], w["X"])
    return {**w, "d_k": H}, {"Y": y}


@executed("variant-knocking", within=LAYER)
def knocking(rng):
    w = draw(rng, W_T=(C, C))
    knocked = variants.knocking_heads(layer(w), t_v=w["W_T"])
    return {**w, "d_k": H}, {"Y": multi_head_attention(knocked, w["X"])}


@executed("variant-window", within=LAYER)
def window(rng):
    w = draw(rng)
    mask = variants.head_windows((1, 2, 3, None, 2, 1), T)
    y = multi_head_attention(layer(w), w["X"], mask=mask)
    return {**w, "d_k": H, "J": mask.astype(float)}, {"Y": y}


@executed("variant-norm", within=LAYER)
def norm(rng):
    w = draw(rng, w_Q=(H,), w_K=(H,))
    y = variants.normalized_attention(layer(w), w["w_Q"], w["w_K"], w["X"], epsilon=0.1)
    return {**w, "d_k": H, "varepsilon": 0.1}, {"Y": y}


@executed("variant-clip", within=LAYER)
def clip(rng):
    w, largest = draw(rng), jnp.asarray([0.5, 1.5, 3.0, 0.1, 2.0, 4.0])
    clipped = variants.clip_queries_and_keys(layer(w), largest, 1.0)
    factor = np.minimum(1, 1 / np.asarray(largest))
    return {**w, "d_k": H, "gamma": factor}, {"Y": multi_head_attention(clipped, w["X"])}


@executed("variant-sink", within=LAYER)
def sink(rng):
    w = draw(rng, s=(N,))
    return {**w, "d_k": H}, {"Y": variants.sink_logit_attention(layer(w), w["s"], w["X"])}


@executed("variant-sigmoid", within=LAYER)
def sigmoid(rng):
    w = draw(rng)
    y = variants.sigmoid_attention(layer(w), w["X"], offset=0.3)
    return {**w, "d_k": H, "b_A": 0.3}, {"Y": y}
