"""The executed equations of the chapter on variants, each within the layer.

They are compared with the package's own function where it has the variant, else with its attention
over the queries, keys and values that the variant makes.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import attend
from mha_book.multihead import MultiHeadParams
from mha_book.multihead.differential import differential_attention
from mha_book.multihead.latent import LatentParams, compress, expanded_attention
from mha_book.multihead.layer import multi_head_attention, project_output, project_qkv
from mha_book.multihead.qk_norm import normalized_attention
from mha_book.multihead.sinks import gated_attention, sink_logit_attention
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


def made(x, w):
    """What the heads make of the input, heads first."""
    return jnp.einsum("ib,hba->hia", x, w)


def joined(query, key, value, w_o, share=1.0):
    """The output of heads with these queries, keys and values."""
    heads = attend(query, key, value, layout="NTH", implementation="reference")
    return jnp.einsum("hic,hcd->id", share * heads, w_o)


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
    return {**w, **SCALE, "R": turn}, {"Y": latent_output(w, angles)}


def latent_output(w, angles):
    params = latent_layer(w)
    return expanded_attention(params, w["X"], compress(params, w["X"], angles), angles)


@executed("variant-low-rank", within=LATENT)
def low_rank(rng):
    w = draw(rng, **ROTATED, W_Z=(B, D, R), W_UK=(B, N, R, H), W_UV=(B, N, R, C))
    turn, angles = turns()
    blocks = ({**w, **{n: w[n][b] for n in ("W_Z", "W_UK", "W_UV")}} for b in range(B))
    y = sum(latent_output(block, angles) for block in blocks) / np.sqrt(B)
    return {**w, **SCALE, "R": turn, "n_r": B}, {"Y": y}


@executed("variant-grouped-latent", within=LATENT, split=PAIRS)
def grouped_latent(rng):
    own = {
        "W_Q": (K, G, D, H), "W_O": (K, G, C, D), "W_QR": (K, G, D, P),
        "W_Z": (K, D, R), "W_UK": (K, G, R, H), "W_UV": (K, G, R, C),
    }  # fmt: skip
    w = draw(rng, **{**ROTATED, **own})
    turn, angles = turns()
    groups = ({**w, **{n: w[n][k] for n in own}} for k in range(K))
    return {**w, **SCALE, "R": turn}, {"Y": sum(latent_output(one, angles) for one in groups)}


@executed("variant-tied", within=LAYER, split=PAIRS)
def tied(rng):
    w = draw(
        rng, W_Q=(K, G, D, H), W_K=(K, D, H), W_V=(K, D, C), W_O=(K, G, C, D),
        W_KR=(D, P), W_QR=(K, G, D, P), W_OK=(K, G, H, D),
    )  # fmt: skip
    (turn, angles), x = turns(), w["X"]
    plain, shared = made(x, w["W_K"]), rotate(x @ w["W_KR"], angles)
    turned = rotate(made(x, flat(w["W_QR"])), angles[None])
    query = jnp.concatenate((made(x, flat(w["W_Q"])), turned), -1)
    key = jnp.concatenate((plain, jnp.stack([shared] * K)), -1)
    # What begins the key is the first part of the value.
    value = jnp.concatenate((plain, made(x, w["W_V"])), -1)
    w_o = jnp.concatenate((flat(w["W_OK"]), flat(w["W_O"])), -2)
    return {**w, **SCALE, "R": turn}, {"Y": joined(query, key, value, w_o)}


@executed("variant-tensor", within=LAYER)
def tensor(rng):
    w = draw(
        rng, W_K=None, W_V=None, W_GK=(D, N, 2), W_FK=(D, 2, H), W_GV=(D, N, 3), W_FV=(D, 3, C)
    )
    x, factors = w["X"], "jb,bhn,jd,dna->hja"
    key = jnp.einsum(factors, x, w["W_GK"], x, w["W_FK"]) / 2
    value = jnp.einsum(factors, x, w["W_GV"], x, w["W_FV"]) / 3
    y = joined(made(x, w["W_Q"]), key, value, w["W_O"])
    return {**w, "d_k": H, "n_K": 2, "n_V": 3}, {"Y": y}


@executed("variant-factorized", within=LAYER)
def factorized(rng):
    w = draw(rng, W_Q=(N, R, H), W_R=(D, R), W_K=(D, H), W_V=(D, C))
    x, one = w["X"], (None, ...)
    y = joined(made(x @ w["W_R"], w["W_Q"]), (x @ w["W_K"])[one], (x @ w["W_V"])[one], w["W_O"])
    return {**w, "d_k": H}, {"Y": y}


@executed("variant-differential", within=LAYER)
def differential(rng):
    w = draw(rng, W_2=(N, D, H), W_g=(D, N))
    second = heads_second(w["W_2"])
    y = differential_attention(layer(w), second, w["W_g"], w["X"])
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
    return {**w, "d_k": H}, {"Y": gated_attention(layer(w), w["W_G"], w["X"])}


@executed("variant-mixture", within=LAYER)
def mixture(rng):
    w = draw(rng)
    share = jax.nn.softmax(w["X"] @ jnp.asarray(rng.normal(size=(D, N))))
    least = jnp.sort(share)[:, -4, None]  # each position takes the four heads with the largest
    share = jnp.where(share >= least, share, 0).T
    operands = (made(w["X"], w[name]) for name in ("W_Q", "W_K", "W_V"))
    return {**w, "d_k": H, "g": share}, {"Y": joined(*operands, w["W_O"], share[..., None])}


@executed("variant-talking", within=LAYER)
def talking(rng):
    w = draw(rng, W_S=(N, N), W_A=(N, N))
    q, k, v = (made(w["X"], w[name]) for name in ("W_Q", "W_K", "W_V"))
    scores = jnp.einsum("hia,hja->hij", q, k) / np.sqrt(H)
    weights = jax.nn.softmax(jnp.einsum("gh,gij->hij", w["W_S"], scores))
    blended = jnp.einsum("gh,gij->hij", w["W_A"], weights)
    return {**w, "d_k": H}, {"Y": jnp.einsum("hij,hjc,hcd->id", blended, v, w["W_O"])}


@executed("variant-knocking", within=LAYER)
def knocking(rng):
    w = draw(rng, W_T=(C, C))
    knocked = {**w, "W_V": w["W_V"] @ w["W_T"]}
    return {**w, "d_k": H}, {"Y": multi_head_attention(layer(knocked), w["X"])}


@executed("variant-window", within=LAYER)
def window(rng):
    w = draw(rng)
    back = np.arange(T)[:, None] - np.arange(T)
    widths = np.array([1, 2, 3, T, 2, 1])[:, None, None]  # keys that a head sees, its own the last
    mask = (back >= 0) & (back < widths)
    y = multi_head_attention(layer(w), w["X"], mask=jnp.asarray(mask))
    return {**w, "d_k": H, "J": mask.astype(float)}, {"Y": y}


@executed("variant-cross-layer", within=LAYER)
def cross_layer(rng):
    w = draw(rng, W_K=None, W_V=None, K_U=(N, T, H), V_U=(N, T, C))
    return {**w, "d_k": H}, {"Y": joined(made(w["X"], w["W_Q"]), w["K_U"], w["V_U"], w["W_O"])}


@executed("variant-selected", within=LAYER)
def selected(rng):
    w = draw(rng)
    index = np.asarray(rng.random(size=(T, T)))
    best = index >= np.sort(index)[:, -2, None]  # two keys for each query, the same for all heads
    y = multi_head_attention(layer(w), w["X"], mask=jnp.asarray(best)[None])
    return {**w, "d_k": H, "M": best.astype(float)}, {"Y": y}


@executed("variant-norm", within=LAYER)
def norm(rng):
    w = draw(rng, w_Q=(H,), w_K=(H,))
    y = normalized_attention(layer(w), w["w_Q"], w["w_K"], w["X"], epsilon=0.1)
    return {**w, "d_k": H, "varepsilon": 0.1}, {"Y": y}


@executed("variant-clip", within=LAYER)
def clip(rng):
    w, factor = draw(rng), np.array([1, 0.6, 0.3, 1, 0.5, 0.25])
    both = {name: np.sqrt(factor)[:, None, None] * w[name] for name in ("W_Q", "W_K")}
    y = multi_head_attention(layer({**w, **both}), w["X"])
    return {**w, "d_k": H, "gamma": factor}, {"Y": y}


@executed("variant-sink", within=LAYER)
def sink(rng):
    w = draw(rng, s=(N,))
    return {**w, "d_k": H}, {"Y": sink_logit_attention(layer(w), w["s"], w["X"])}


@executed("variant-sigmoid", within=LAYER)
def sigmoid(rng):
    w = draw(rng)
    q, k, v = project_qkv(layer(w), w["X"])
    weights = 1 / (1 + np.exp(-(q @ np.swapaxes(k, -1, -2) / np.sqrt(H) + 0.3)))
    y = project_output(layer(w), jnp.asarray(weights @ v))
    return {**w, "d_k": H, "b_A": 0.3}, {"Y": y}
