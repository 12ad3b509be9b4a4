"""The executed and the tested equations of the chapter on the multi-head layer."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import (
    MultiHeadParams,
    fuse,
    identity_params,
    init_multi_head,
    multi_head_attention,
    scaled_dot_product_attention,
)
from mha_book.heads import combine_heads
from mha_book.multihead.layer import project_heads
from tests.book.equations import executed, tested

T, N, H, C, D = 3, 5, 2, 7, 11  # positions, heads, features of a key, of a value, of the model


def layer(rng):
    """Parameters, input, output and intermediates, all but the parameters as NumPy arrays."""
    params = init_multi_head(jax.random.key(3), D, N, head_dim=H, value_dim=C)
    x = rng.normal(size=(T, D))
    y, inside = multi_head_attention(params, jnp.asarray(x, jnp.float32), return_intermediates=True)
    return jax.tree.map(np.asarray, params), x, np.asarray(y), jax.tree.map(np.asarray, inside)


def package_scores(inside):
    """What the package's softmax is taken of: log A + L, with L the log-sum-exp of the row."""
    operands = (jnp.asarray(x) for x in (inside.query, inside.key, inside.value))
    _, lse = scaled_dot_product_attention(*operands, return_lse=True)
    return np.log(inside.weights) + lse[..., None]


def spare(rng):
    """Outputs at z of z, za, zb, zab and zaa for one head, and the weights relative to z's."""
    params = init_multi_head(jax.random.key(2), 4, 1, head_dim=6)
    z, a, b = (jnp.asarray(rng.normal(size=4), jnp.float32) for _ in range(3))
    sequences = {"z": (z,), "a": (z, a), "b": (z, b), "ab": (z, a, b), "aa": (z, a, a)}
    y, w = {}, {}
    for name, tokens in sequences.items():
        out, inside = multi_head_attention(params, jnp.stack(tokens), return_intermediates=True)
        y[name] = np.asarray(out[0])
        row = np.asarray(inside.weights[0, 0])
        w[name] = row[1:] / row[0]
    return y, w["ab"][0], w["ab"][1]


@tested(
    "layer-two-heads",
    latex=r"""\begin{aligned}
W_Q &= \begin{pmatrix} 1 & 1 \\ 1 & 1 \end{pmatrix}, \\
W_K &= \beta \begin{pmatrix} 1 & -1 \\ -1 & 1 \end{pmatrix}, \\
W_V &= \begin{pmatrix} 1 & -\tfrac13 \\ -\tfrac13 & 1 \end{pmatrix}, \\
W_O &= \tfrac38 \begin{pmatrix} 3 & 1 \\ 1 & 3 \end{pmatrix}
\end{aligned}""",
    alterations=("beta", "sign", "output"),
)
def two_heads(rng, altered):
    # What the page says of these matrices: the outputs are the largest values, exactly.
    beta = np.log(3) / (1 if altered == "beta" else 2)
    third = 1 / 3 if altered == "sign" else -1 / 3
    w_o = 3 / 8 * np.array([[3, 1], [1, 3]]) / (2 if altered == "output" else 1)
    w_k, w_v = beta * np.array([[1, -1], [-1, 1]]), np.array([[1, third], [third, 1]])
    into = [jnp.asarray(w, jnp.float32)[:, :, None] for w in (np.ones((2, 2)), w_k, w_v)]
    params = MultiHeadParams(*into, jnp.asarray(w_o, jnp.float32)[:, None, :])
    a, b = np.eye(2)
    x = np.array([[a, a], [b, b], [a, b], [b, a]])
    left = multi_head_attention(params, jnp.asarray(x, jnp.float32))
    return left, np.repeat(x.max(axis=1, keepdims=True), 2, axis=1)


@tested(
    "layer-columns",
    latex=r"\left( X W_Q \right)^\top = W_Q^\top X^\top",
    alterations=("order",),
)
def columns(rng, altered):
    x, w = rng.normal(size=(2, D, D))
    return (x @ w).T, x.T @ w.T if altered else w.T @ x.T


@tested(
    "layer-fused",
    latex=r"""\begin{aligned}
& X \begin{pmatrix} W_Q & W_K & W_V \end{pmatrix} \\
&\quad = \begin{pmatrix} X W_Q & X W_K & X W_V \end{pmatrix}
\end{aligned}""",
    alterations=("order",),
)
def fused(rng, altered):
    params = init_multi_head(jax.random.key(4), D, N, head_dim=H)
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    order = (1, 0, 2) if altered else (0, 1, 2)
    right = [project_heads(x, params[n]) for n in order]
    return project_heads(x, fuse(params).w_qkv), np.concatenate(right)


@tested(
    "layer-example",
    latex=r"""\begin{aligned}
A^0 &= \begin{pmatrix} p & 1 - p \\ \tfrac12 & \tfrac12 \end{pmatrix}, \\
A^1 &= \begin{pmatrix} \tfrac12 & \tfrac12 \\ 1 - p & p \end{pmatrix}, \\
Y &= \begin{pmatrix} p & \tfrac12 \\ \tfrac12 & p \end{pmatrix}
\end{aligned}""",
    alterations=("heads", "value"),
)
def example(rng, altered):
    y, inside = multi_head_attention(identity_params(2, 2), jnp.eye(2), return_intermediates=True)
    p = np.e / (np.e + (2 if altered == "value" else 1))
    a = [[[p, 1 - p], [0.5, 0.5]], [[0.5, 0.5], [1 - p, p]]]
    a = a[::-1] if altered == "heads" else a
    return np.stack([*inside.weights, y]), np.stack([*a, [[p, 0.5], [0.5, p]]])


@tested(
    "layer-swap",
    latex=r"""\frac{\partial L}{\partial W^0} = \frac{\partial L}{\partial W^1}
\quad \text{where } W^0 = W^1""",
    alterations=("start",),
)
def swap(rng, altered):
    params = init_multi_head(jax.random.key(5), D, 2, head_dim=H)
    if not altered:
        into = [jnp.repeat(w[:, :1], 2, axis=1) for w in params[:3]]
        params = MultiHeadParams(*into, jnp.repeat(params.w_o[:1], 2, axis=0))
    x, goal = (jnp.asarray(rng.normal(size=(T, D)), jnp.float32) for _ in range(2))
    slopes = jax.grad(lambda p: jnp.sum((multi_head_attention(p, x) - goal) ** 2))(params)
    by_head = [jnp.moveaxis(g, 1, 0) for g in slopes[:3]] + [slopes.w_o]
    return tuple(np.concatenate([np.ravel(g[h]) for g in by_head]) for h in range(2))


@executed("layer-hull")
def hull(rng):
    params = init_multi_head(jax.random.key(1), 6, 1, head_dim=6)
    x = rng.normal(size=(T, 6))
    y, inside = multi_head_attention(params, jnp.asarray(x, jnp.float32), return_intermediates=True)
    w_v, w_o = np.asarray(params.w_v)[:, 0], np.asarray(params.w_o)[0]
    return {"X": x, "A": inside.weights[0], "W_V": w_v, "W_O": w_o}, {"y": y}


@executed("layer-spare")
def spare_token(rng):
    y, w_a, w_b = spare(rng)
    outputs = {f"y_{name}": value for name, value in y.items()}
    return outputs | {"w_a": w_a, "w_b": w_b}, {}


@executed("layer-repeat")
def repeated_token(rng):
    y, w_a, _ = spare(rng)
    return {f"y_{name}": value for name, value in y.items()} | {"w_a": w_a}, {}


@executed("layer-projections")
def projections(rng):
    params, x, _, inside = layer(rng)
    weights = [np.swapaxes(w, 0, 1) for w in params[:3]]  # the page has the heads first
    arrays = dict(zip(("W_Q", "W_K", "W_V"), weights, strict=True))
    return arrays | {"X": x}, {"Q": inside.query, "K": inside.key, "V": inside.value}


@executed("layer-scores")
def scores(rng):
    _, _, _, inside = layer(rng)
    return {"Q": inside.query, "K": inside.key, "d_k": H}, {"S": package_scores(inside)}


@executed("layer-heads")
def heads(rng):
    _, _, _, inside = layer(rng)
    arrays = {"S": package_scores(inside), "V": inside.value}
    return arrays, {"A": inside.weights, "O": inside.head_outputs}


@executed("layer-output")
def output(rng):
    params, _, y, inside = layer(rng)
    return {"O": inside.head_outputs, "W_O": params.w_o}, {"Y": y}


@executed("layer-bilinear")
def bilinear(rng):
    params, x, _, inside = layer(rng)
    w_q, w_k = (np.swapaxes(w, 0, 1) for w in params[:2])
    return {"X": x, "W_Q": w_q, "W_K": w_k, "d_k": H}, {"S": package_scores(inside)}


@executed("layer-concat")
def concat(rng):
    params, _, _, inside = layer(rng)
    wide = combine_heads(jnp.asarray(inside.head_outputs))
    arrays = {"O": inside.head_outputs, "O_widehat": wide}
    return arrays | {"W_O": params.w_o, "W": np.reshape(params.w_o, (N * C, D))}, {}


@executed("layer-sum")
def head_sum(rng):
    params, _, y, inside = layer(rng)
    return {"O": inside.head_outputs, "W_O": params.w_o}, {"Y": y}


@executed("layer-qr")
def qr(rng):
    w_q, w_k = rng.normal(size=(2, N, D, H))
    (e_q, r_q), (e_k, r_k) = np.linalg.qr(w_q), np.linalg.qr(w_k)
    return {"W_Q": w_q, "W_K": w_k, "E_Q": e_q, "R_Q": r_q, "E_K": e_k, "R_K": r_k}, {}
