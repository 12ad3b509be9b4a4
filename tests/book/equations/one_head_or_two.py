"""The executed and the tested equations of the page on one head or two."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import (
    MultiHeadParams,
    fuse,
    identity_params,
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
)
from mha_book.multihead.layer import project_heads
from tests.book.equations import executed, fed, tested
from tests.book.equations.index_notation import whole

T, N, H, C, D = 3, 5, 2, 7, 11  # positions, heads, features of a key, of a value, of the model


def spare(rng):
    """For one head: outputs at z of six sequences, weights relative to z's, and the offers u."""
    params = init_multi_head(jax.random.key(2), 4, 1, head_dim=6)
    z, p, q = (jnp.asarray(rng.normal(size=4), jnp.float32) for _ in range(3))
    sequences = {"z": (z,), "p": (z, p), "q": (z, q), "pq": (z, p, q), "pp": (z, p, p)}
    sequences["qq"] = (z, q, q)
    y, w = {}, {}
    for name, tokens in sequences.items():
        out, inside = multi_head_attention_with_intermediates(params, jnp.stack(tokens))
        y[name] = np.asarray(out[0])
        row = np.asarray(inside.weights[0, 0])
        w[name] = row[1:] / row[0]
    u = {name: x @ params.w_v[:, 0] @ params.w_o[0] for name, x in (("z", z), ("p", p), ("q", q))}
    return y, w["pq"][0], w["pq"][1], u


@tested(
    "layer-two-heads",
    latex=r"""\begin{aligned}
W_Q &= \begin{pmatrix} 1 & 1 \\ 1 & 1 \end{pmatrix}, \\
W_K &= \tfrac12 \log 3 \begin{pmatrix} 1 & -1 \\ -1 & 1 \end{pmatrix}, \\
W_V &= \begin{pmatrix} 1 & -\tfrac13 \\ -\tfrac13 & 1 \end{pmatrix}, \\
W_O &= \tfrac38 \begin{pmatrix} 3 & 1 \\ 1 & 3 \end{pmatrix}
\end{aligned}""",
)
def two_heads(rng):
    # What the page says of these matrices: the outputs are the largest values, exactly.
    a, b = np.eye(2)
    x = np.array([[a, a], [b, b], [a, b], [b, a]])
    left = multi_head_attention(exact_pair(), jnp.asarray(x, jnp.float32))
    return left, np.repeat(x.max(axis=1, keepdims=True), 2, axis=1)


def exact_pair():
    """Two heads of width 1 that are exact on the three pairs."""
    third = -1 / 3
    w_k = np.log(3) / 2 * np.array([[1, -1], [-1, 1]])
    w_v, w_o = np.array([[1, third], [third, 1]]), 3 / 8 * np.array([[3, 1], [1, 3]])
    into = [jnp.asarray(w, jnp.float32)[:, :, None] for w in (np.ones((2, 2)), w_k, w_v)]
    return MultiHeadParams(*into, jnp.asarray(w_o, jnp.float32)[:, None, :])


@tested(
    "layer-fused",
    latex=r"""\begin{aligned}
& X \begin{pmatrix} W_Q & W_K & W_V \end{pmatrix} \\
&\quad = \begin{pmatrix} X W_Q & X W_K & X W_V \end{pmatrix}
\end{aligned}""",
)
def fused(rng):
    params = init_multi_head(jax.random.key(4), D, N, head_dim=H)
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    right = [project_heads(x, params[n]) for n in range(3)]
    return project_heads(x, fuse(params).w_qkv), np.concatenate(right)


@tested(
    "layer-example",
    latex=r"""\begin{aligned}
A^0 &= \begin{pmatrix} s & 1 - s \\ \tfrac12 & \tfrac12 \end{pmatrix}, \\
A^1 &= \begin{pmatrix} \tfrac12 & \tfrac12 \\ 1 - s & s \end{pmatrix}, \\
Y &= \begin{pmatrix} s & \tfrac12 \\ \tfrac12 & s \end{pmatrix}
\end{aligned}""",
)
def example(rng):
    y, inside = multi_head_attention_with_intermediates(identity_params(2, 2), jnp.eye(2))
    s = 1 / (1 + np.exp(-1))
    a = [[[s, 1 - s], [0.5, 0.5]], [[0.5, 0.5], [1 - s, s]]]
    return np.stack([*inside.weights, y]), np.stack([*a, [[s, 0.5], [0.5, s]]])


@executed("layer-hull")
def hull(rng):
    params = init_multi_head(jax.random.key(1), 6, 1, head_dim=6)
    x = rng.normal(size=(T, 6))
    y, inside = multi_head_attention_with_intermediates(params, jnp.asarray(x, jnp.float32))
    w_v, w_o = np.asarray(params.w_v)[:, 0], np.asarray(params.w_o)[0]
    return {"X": x, "A": inside.weights[0], "W_V": w_v, "W_O": w_o}, {"Y": y}


@executed("layer-repeat")
def repeated_token(rng):
    y, w_p, w_q, _ = spare(rng)
    return {f"y_{name}": y[name] for name in ("pp", "qq")} | {"w_p": w_p, "w_q": w_q}, {
        "y_pq": y["pq"]
    }


fed("layer-concat", whole, "O O_widehat W_O W")
fed("layer-sum", whole, "O W_O", "Y")
