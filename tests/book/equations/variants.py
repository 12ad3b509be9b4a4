"""The executed equations of the chapter on variants, each within the layer.

They are compared with the package where it has the variant, else with NumPy, a head at a time.
"""

import jax.numpy as jnp
import numpy as np

from mha_book.multihead import MultiHeadParams
from mha_book.multihead.differential import differential_attention
from mha_book.multihead.latent import LatentParams, compress, expanded_attention
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.qk_norm import clip_queries_and_keys, normalized_attention
from mha_book.multihead.sinks import (
    gated_attention,
    sigmoid_attention,
    sink_logit_attention,
)
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


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def attended(q, k, v):
    """What one head returns."""
    return softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v


def by_head(w, *names):
    """The arrays of each head, one head after the other, by NumPy."""
    return zip(*(np.asarray(w[name]) for name in names), strict=True)


def joined(heads, w_o):
    return sum(head @ out for head, out in zip(heads, np.asarray(w_o), strict=True))


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


def rotated(x, turn):
    return np.einsum("iab,ib->ia", np.asarray(turn), x)


@executed("variant-low-rank", within=LATENT)
def low_rank(rng):
    w = draw(rng, **ROTATED, W_Z=(B, D, R), W_UK=(B, N, R, H), W_UV=(B, N, R, C))
    turn, _ = turns()
    x, shared = np.asarray(w["X"]), rotated(np.asarray(w["X"] @ w["W_KR"]), turn)
    heads = np.zeros((N, T, C))
    for h, (w_q, w_qr) in enumerate(by_head(w, "W_Q", "W_QR")):
        query = np.concatenate((x @ w_q, rotated(x @ w_qr, turn)), axis=-1)
        for w_z, w_uk, w_uv in by_head(w, "W_Z", "W_UK", "W_UV"):
            key = np.concatenate((x @ w_z @ w_uk[h], shared), axis=-1)
            heads[h] += attended(query, key, x @ w_z @ w_uv[h]) / np.sqrt(B)
    return {**w, **SCALE, "R": turn, "n_r": B}, {"Y": joined(heads, w["W_O"])}


@executed("variant-grouped-latent", within=LATENT, split=PAIRS)
def grouped_latent(rng):
    pairs = {"W_Q": (K, G, D, H), "W_O": (K, G, C, D), "W_QR": (K, G, D, P)}
    own = {"W_Z": (K, D, R), "W_UK": (K, G, R, H), "W_UV": (K, G, R, C)}
    w = draw(rng, **{**ROTATED, **pairs, **own})
    turn, _ = turns()
    x, shared = np.asarray(w["X"]), rotated(np.asarray(w["X"] @ w["W_KR"]), turn)
    heads = []
    one = {name: flat(w[name]) for name in (*pairs, "W_UK", "W_UV")}
    for h, (w_q, w_qr, w_uk, w_uv) in enumerate(by_head(one, "W_Q", "W_QR", "W_UK", "W_UV")):
        latent = x @ np.asarray(w["W_Z"])[h // G]
        query = np.concatenate((x @ w_q, rotated(x @ w_qr, turn)), axis=-1)
        heads.append(attended(query, np.concatenate((latent @ w_uk, shared), -1), latent @ w_uv))
    return {**w, **SCALE, "R": turn}, {"Y": joined(heads, one["W_O"])}


@executed("variant-tied", within=LAYER, split=PAIRS)
def tied(rng):
    w = draw(
        rng, W_Q=(K, G, D, H), W_K=(K, D, H), W_V=(K, D, C), W_O=(K, G, C, D),
        W_KR=(D, P), W_QR=(K, G, D, P), W_OK=(K, G, H, D),
    )  # fmt: skip
    turn, _ = turns()
    x, shared = np.asarray(w["X"]), rotated(np.asarray(w["X"] @ w["W_KR"]), turn)
    pairs = {name: flat(w[name]) for name in ("W_Q", "W_QR", "W_O", "W_OK")}
    y = np.zeros((T, D))
    for h, (w_q, w_qr, w_o, w_ok) in enumerate(by_head(pairs, *pairs)):
        # What begins the key is the first part of the value.
        plain, rest = x @ np.asarray(w["W_K"])[h // G], x @ np.asarray(w["W_V"])[h // G]
        query = np.concatenate((x @ w_q, rotated(x @ w_qr, turn)), axis=-1)
        value = np.concatenate((plain, rest), axis=-1)
        head = attended(query, np.concatenate((plain, shared), axis=-1), value)
        y += head @ np.concatenate((w_ok, w_o))
    return {**w, **SCALE, "R": turn}, {"Y": y}


@executed("variant-tensor", within=LAYER)
def tensor(rng):
    w = draw(
        rng, W_K=None, W_V=None, W_GK=(D, N, 2), W_FK=(D, 2, H), W_GV=(D, N, 3), W_FV=(D, 3, C)
    )
    x = np.asarray(w["X"])

    def made(heads, features):
        """The mean of the products of factors, (N, T, width)."""
        heads, features = np.asarray(w[heads]), np.asarray(w[features])
        return [
            sum((x @ heads[:, h, n])[:, None] * (x @ features[:, n]) for n in range(heads.shape[2]))
            / heads.shape[2]
            for h in range(N)
        ]

    keys, values = made("W_GK", "W_FK"), made("W_GV", "W_FV")
    heads = [
        attended(x @ w_q, k, v)
        for (w_q,), k, v in zip(by_head(w, "W_Q"), keys, values, strict=True)
    ]
    return {**w, "d_k": H, "n_K": 2, "n_V": 3}, {"Y": joined(heads, w["W_O"])}


@executed("variant-factorized", within=LAYER)
def factorized(rng):
    w = draw(rng, W_Q=(N, R, H), W_R=(D, R), W_K=(D, H), W_V=(D, C))
    x, w_r, w_k, w_v = (np.asarray(w[name]) for name in ("X", "W_R", "W_K", "W_V"))
    heads = [attended(x @ w_r @ w_q, x @ w_k, x @ w_v) for (w_q,) in by_head(w, "W_Q")]
    return {**w, "d_k": H}, {"Y": joined(heads, w["W_O"])}


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
    w, router = draw(rng), rng.normal(size=(D, N))
    x = np.asarray(w["X"])
    share = softmax(x @ router)  # each position takes the four heads with the largest
    share = np.where(share >= np.sort(share, axis=-1)[:, -4, None], share, 0).T
    heads = [
        g[:, None] * attended(x @ w_q, x @ w_k, x @ w_v)
        for g, (w_q, w_k, w_v) in zip(share, by_head(w, "W_Q", "W_K", "W_V"), strict=True)
    ]
    return {**w, "d_k": H, "g": share}, {"Y": joined(heads, w["W_O"])}


@executed("variant-talking", within=LAYER)
def talking(rng):
    w = draw(rng, W_S=(N, N), W_A=(N, N))
    x, mix, blend = (np.asarray(w[name]) for name in ("X", "W_S", "W_A"))
    scores = [x @ w_q @ (x @ w_k).T / np.sqrt(H) for w_q, w_k in by_head(w, "W_Q", "W_K")]
    mixed = [softmax(sum(mix[g, h] * scores[g] for g in range(N))) for h in range(N)]
    blended = [sum(blend[g, h] * mixed[g] for g in range(N)) for h in range(N)]
    heads = [a @ x @ w_v for a, (w_v,) in zip(blended, by_head(w, "W_V"), strict=True)]
    return {**w, "d_k": H}, {"Y": joined(heads, w["W_O"])}


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


@executed("variant-norm", within=LAYER)
def norm(rng):
    w = draw(rng, w_Q=(H,), w_K=(H,))
    y = normalized_attention(layer(w), w["w_Q"], w["w_K"], w["X"], epsilon=0.1)
    return {**w, "d_k": H, "varepsilon": 0.1}, {"Y": y}


@executed("variant-clip", within=LAYER)
def clip(rng):
    w, largest = draw(rng), jnp.asarray([0.5, 1.5, 3.0, 0.1, 2.0, 4.0])
    clipped = clip_queries_and_keys(layer(w), largest, 1.0)
    factor = np.minimum(1, 1 / np.asarray(largest))
    return {**w, "d_k": H, "gamma": factor}, {"Y": multi_head_attention(clipped, w["X"])}


@executed("variant-sink", within=LAYER)
def sink(rng):
    w = draw(rng, s=(N,))
    return {**w, "d_k": H}, {"Y": sink_logit_attention(layer(w), w["s"], w["X"])}


@executed("variant-sigmoid", within=LAYER)
def sigmoid(rng):
    w = draw(rng)
    y = sigmoid_attention(layer(w), w["X"], offset=0.3)
    return {**w, "d_k": H, "b_A": 0.3}, {"Y": y}
