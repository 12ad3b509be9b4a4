"""The tested equations of the chapter on the multi-head layer."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, fuse, identity_params, init_multi_head, multi_head_attention
from mha_book.heads import combine_heads
from mha_book.multihead import project_heads
from tests.equations import tested

T, N, H, C, D = 3, 5, 2, 7, 11  # positions, heads, features of a key, of a value, of the model


def layer(rng):
    """Parameters, input, output and intermediates, all but the parameters as NumPy arrays."""
    params = init_multi_head(jax.random.key(3), D, N, head_dim=H, value_dim=C)
    x = rng.normal(size=(T, D))
    y, inside = multi_head_attention(params, jnp.asarray(x, jnp.float32), return_intermediates=True)
    return jax.tree.map(np.asarray, params), x, np.asarray(y), jax.tree.map(np.asarray, inside)


def softmax(scores):
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


@tested(
    "layer-hull",
    latex=r"y^i = \sum_j A^{ij} u^j, \qquad u^j = x^j W_V W_O",
    alterations=("transpose", "order"),
)
def hull(rng, altered):
    params = init_multi_head(jax.random.key(1), 6, 1, head_dim=6)
    x = rng.normal(size=(T, 6))
    y, inside = multi_head_attention(params, jnp.asarray(x, jnp.float32), return_intermediates=True)
    w_v, w_o = np.asarray(params.w_v)[:, 0], np.asarray(params.w_o)[0]
    u = x @ (w_o @ w_v if altered == "order" else w_v @ w_o)
    a = np.asarray(inside.weights)[0]
    a = a.T if altered == "transpose" else a
    return y, [sum(a[i, j] * u[j] for j in range(T)) for i in range(T)]


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
    "layer-spare",
    latex=r"""\begin{aligned}
y_{ab} - y_z &= \lambda\, (y_a - y_z) + \mu\, (y_b - y_z), \\
\lambda &= \frac{1 + w_a}{1 + w_a + w_b}, \\
\mu &= \frac{1 + w_b}{1 + w_a + w_b}
\end{aligned}""",
    alterations=("exchange", "one"),
)
def spare_token(rng, altered):
    y, w_a, w_b = spare(rng)
    total = 1 + w_a + w_b
    first, second = (w_b, w_a) if altered == "exchange" else (w_a, w_b)
    one = 0 if altered == "one" else 1
    right = (one + first) / total * (y["a"] - y["z"]) + (one + second) / total * (y["b"] - y["z"])
    return y["ab"] - y["z"], right


@tested(
    "layer-repeat",
    latex=r"""\begin{aligned}
y_{aa} - y_z &= \kappa\, (y_a - y_z), \\
\kappa &= \frac{2\,(1 + w_a)}{1 + 2 w_a}
\end{aligned}""",
    alterations=("factor",),
)
def repeated_token(rng, altered):
    y, w_a, _ = spare(rng)
    factor = (1 if altered else 2) * (1 + w_a) / (1 + 2 * w_a)
    return y["aa"] - y["z"], factor * (y["a"] - y["z"])


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
    "layer-projections",
    latex=r"""\begin{aligned}
Q^{hia} &= X^{ib}\, W_Q^{hba} \\
K^{hja} &= X^{jb}\, W_K^{hba} \\
V^{hjc} &= X^{jb}\, W_V^{hbc}
\end{aligned}""",
    alterations=("head", "exchange"),
)
def projections(rng, altered):
    params, x, _, inside = layer(rng)

    def project(w):
        w = np.roll(w, 1, axis=1) if altered == "head" else w
        indices = np.ndindex(N, T, w.shape[2])
        flat = [sum(x[i, b] * w[b, h, a] for b in range(D)) for h, i, a in indices]
        return np.array(flat)

    w_q, w_k = (params.w_k, params.w_q) if altered == "exchange" else (params.w_q, params.w_k)
    left = [z.ravel() for z in (inside.query, inside.key, inside.value)]
    return np.concatenate(left), np.concatenate([project(w) for w in (w_q, w_k, params.w_v)])


@tested(
    "layer-scores",
    latex=r"S^{hij} = \frac{1}{\sqrt{d_k}}\, Q^{hia} K^{hja}",
    alterations=("scale", "transpose"),
)
def scores(rng, altered):
    # The package's scores up to a number for each row, which the softmax does not see.
    _, _, _, inside = layer(rng)
    q, k = inside.query, inside.key
    if altered == "transpose":
        q, k = k, q
    s = np.array(
        [
            [[sum(q[h, i, a] * k[h, j, a] for a in range(H)) for j in range(T)] for i in range(T)]
            for h in range(N)
        ]
    ) / (H if altered == "scale" else np.sqrt(H))
    logs = np.log(inside.weights)
    return logs - logs.mean(-1, keepdims=True), s - s.mean(-1, keepdims=True)


@tested(
    "layer-heads",
    latex=r"""\begin{aligned}
A^{hij} &= \frac{\exp S^{hij}}{\sum_{j'} \exp S^{hij'}} \\
O^{hic} &= A^{hij} V^{hjc}
\end{aligned}""",
    alterations=("axis", "head"),
)
def heads(rng, altered):
    _, _, _, inside = layer(rng)
    s = np.einsum("hia,hja->hij", inside.query, inside.key) / np.sqrt(H)
    a = np.exp(s) / np.exp(s).sum(axis=1 if altered == "axis" else 2, keepdims=True)
    v = np.roll(inside.value, 1, axis=0) if altered == "head" else inside.value
    o = [sum(a[h, i, j] * v[h, j] for j in range(T)) for h in range(N) for i in range(T)]
    left = np.concatenate([inside.weights.ravel(), inside.head_outputs.ravel()])
    return left, np.concatenate([a.ravel(), np.ravel(o)])


@tested("layer-output", latex=r"Y^{id} = O^{hic} W_O^{hcd}", alterations=("head",))
def output(rng, altered):
    params, _, y, inside = layer(rng)
    w_o = np.roll(params.w_o, 1, axis=0) if altered else params.w_o
    o = inside.head_outputs
    right = [
        [sum(o[h, i, c] * w_o[h, c, d] for h in range(N) for c in range(C)) for d in range(D)]
        for i in range(T)
    ]
    return y, right


@tested(
    "layer-columns",
    latex=r"\left( X W_Q \right)^\top = W_Q^\top X^\top",
    alterations=("order",),
)
def columns(rng, altered):
    x, w = rng.normal(size=(2, D, D))
    return (x @ w).T, x.T @ w.T if altered else w.T @ x.T


@tested(
    "layer-bilinear",
    latex=r"S^{hij} = \frac{1}{\sqrt{d_k}}\, x^i\, W_Q^h\, W_K^{h\top}\, x^{j\top}",
    alterations=("transpose",),
)
def bilinear(rng, altered):
    params, x, _, inside = layer(rng)
    left = np.einsum("hia,hja->hij", inside.query, inside.key) / np.sqrt(H)
    right = []
    for h in range(N):
        form = params.w_q[:, h] @ params.w_k[:, h].T
        right.append(x @ (form.T if altered else form) @ x.T / np.sqrt(H))
    return left, right


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
    "layer-concat",
    latex=r"""\sum_{h} \sum_{c} O^{hic}\, W_O^{hcd}
= \sum_{m} \widehat{O}^{im}\, W_O^{md}""",
    alterations=("order",),
)
def concat(rng, altered):
    params, _, _, inside = layer(rng)
    wide = np.asarray(combine_heads(jnp.asarray(inside.head_outputs)))
    w_o = np.swapaxes(params.w_o, 0, 1) if altered else params.w_o  # c before h
    flat = np.reshape(w_o, (N * C, D))
    left = sum(inside.head_outputs[h] @ params.w_o[h] for h in range(N))
    return left, [sum(wide[i, m] * flat[m] for m in range(N * C)) for i in range(T)]


@tested("layer-sum", latex=r"Y = \sum_{h} O^h\, W_O^h", alterations=("mean",))
def head_sum(rng, altered):
    params, _, y, inside = layer(rng)
    right = sum(inside.head_outputs[h] @ params.w_o[h] for h in range(N))
    return y, right / N if altered else right


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
    "layer-qr",
    latex=r"W_Q^h W_K^{h\top} = E_Q \left( R_Q R_K^\top \right) E_K^\top",
    alterations=("transpose",),
)
def qr(rng, altered):
    w_q, w_k = rng.normal(size=(2, D, H))
    (e_q, r_q), (e_k, r_k) = np.linalg.qr(w_q), np.linalg.qr(w_k)
    return w_q @ w_k.T, e_q @ (r_q @ (r_k if altered else r_k.T)) @ e_k.T


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
