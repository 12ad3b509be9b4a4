"""The tested equations of the chapter on scaled dot-product attention."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import (
    attention_weights,
    causal,
    init_multi_head,
    multi_head_attention,
    scaled_dot_product_attention,
)
from tests.equations import tested

T, S, D_K, C = 3, 5, 2, 7


def operands(rng):
    return tuple(jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((T, D_K), (S, D_K), (S, C)))


def exact_scores(q, k):
    return np.array(
        [[sum(q[i, a] * k[j, a] for a in range(D_K)) for j in range(S)] for i in range(T)]
    )


def exact_weights(scores):
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


@tested(
    "sdpa-scores",
    latex=r"S^{ij} = \frac{1}{\sqrt{d_k}} \sum_a Q^{ia} K^{ja}",
    alterations=("scale", "index"),
    tolerance=1e-5,
)
def scores(rng, altered):
    q, k, v = operands(rng)
    # What the package normalises: log A + L, with L the log-sum-exp of the row.
    lse = scaled_dot_product_attention(q, k, v, return_lse=True)[1]
    left = jnp.log(attention_weights(q, k)) + lse[:, None]
    q, k = np.asarray(q), np.asarray(k)
    if altered == "index":
        k = np.roll(k, 1, axis=0)
    return left, exact_scores(q, k) / (D_K if altered == "scale" else np.sqrt(D_K))


@tested(
    "sdpa-softmax",
    latex=r"A^{ij} = \frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}",
    alterations=("axis", "sign"),
)
def softmax(rng, altered):
    q, k, _ = operands(rng)
    s = exact_scores(np.asarray(q), np.asarray(k)) / np.sqrt(D_K)
    e = np.exp(-s if altered == "sign" else s)
    return attention_weights(q, k), e / e.sum(0 if altered == "axis" else 1, keepdims=True)


@tested("sdpa-output", latex=r"O^{ic} = \sum_j A^{ij}\, V^{jc}", alterations=("index",))
def output(rng, altered):
    q, k, v = operands(rng)
    a, x = np.asarray(attention_weights(q, k)), np.asarray(v)
    if altered:
        x = np.roll(x, 1, axis=0)
    right = [[sum(a[i, j] * x[j, c] for j in range(S)) for c in range(C)] for i in range(T)]
    return scaled_dot_product_attention(q, k, v), right


@tested(
    "sdpa-matrix",
    latex=r"O = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V",
    alterations=("scale",),
)
def matrix(rng, altered):
    q, k, v = operands(rng)
    s = np.asarray(q) @ np.asarray(k).T / (D_K**2 if altered else np.sqrt(D_K))
    return scaled_dot_product_attention(q, k, v), exact_weights(s) @ np.asarray(v)


@tested(
    "sdpa-moments",
    latex=r"""\begin{aligned}
\operatorname{E}\Big[\sum_a q_a k_a\Big] &= 0, \\
\operatorname{Var}\Big[\sum_a q_a k_a\Big]
&= \sum_a \operatorname{E}[q_a^2]\, \operatorname{E}[k_a^2] \\
&= d_k
\end{aligned}""",
    alterations=("mean", "root", "square"),
    tolerance=1e-9,
)
def moments(rng, altered):
    # Exact, by going through every outcome: entries of q are ±1, those of k are 0 or ±sqrt(3/2)
    # with probability 1/3 each; both have mean 0 and variance 1.
    d_k = 3
    signs, thirds = (-1.0, 1.0), (-np.sqrt(1.5), 0.0, np.sqrt(1.5))
    shift = 1.0 if altered == "mean" else 0.0
    dots = [
        sum((a + shift) * (b + shift) for a, b in zip(q, k, strict=True))
        for q, k in product(product(signs, repeat=d_k), product(thirds, repeat=d_k))
    ]
    products = d_k * np.mean(np.square(signs)) * np.mean(np.square(thirds))
    variance = {"root": np.sqrt(d_k), "square": d_k**2}.get(altered, d_k)
    return [np.mean(dots), np.var(dots), products], [0.0, variance, variance]


@tested(
    "sdpa-jacobian",
    latex=r"\frac{\partial A^{ij}}{\partial S^{im}} = A^{ij} \left( \delta^{jm} - A^{im} \right)",
    alterations=("sign", "index"),
)
def jacobian(rng, altered):
    s = jnp.asarray(rng.normal(size=S), jnp.float32)
    a = np.asarray(jax.nn.softmax(s))
    delta = np.roll(np.eye(S), 1, axis=0) if altered == "index" else np.eye(S)
    right = a[:, None] * (delta - (-a if altered == "sign" else a)[None, :])
    return jax.jacobian(jax.nn.softmax)(s), right


@tested(
    "sdpa-sensitivity",
    latex=r"""g^i = \sum_j \frac{\partial A^{ij}}{\partial S^{ij}}
= 1 - \sum_j \left( A^{ij} \right)^2""",
    alterations=("power",),
)
def sensitivity(rng, altered):
    s = jnp.asarray(rng.normal(size=(T, S)), jnp.float32)
    left = [jnp.trace(jax.jacobian(jax.nn.softmax)(row)) for row in s]
    a = np.asarray(jax.nn.softmax(s))
    return left, 1 - (a ** (3 if altered else 2)).sum(-1)


@tested(
    "sdpa-aligned",
    latex=r"""S^{ij} = \frac{\rho\, \lVert q^i \rVert\, \lVert k^j \rVert}{\sqrt{d_k}}
= \rho \sqrt{d_k}""",
    alterations=("scale", "sine"),
)
def aligned(rng, altered):
    d_k, rho = 11, 0.3
    q = rng.normal(size=d_k)
    q *= np.sqrt(d_k) / np.linalg.norm(q)
    aside = rng.normal(size=d_k)
    aside -= aside @ q / d_k * q
    aside *= np.sqrt(d_k) / np.linalg.norm(aside)
    k = rho * q + np.sqrt(1 - rho**2) * aside
    score = q @ k / np.sqrt(d_k)
    norms = np.linalg.norm(q) * np.linalg.norm(k) / (1 if altered == "scale" else np.sqrt(d_k))
    cosine = np.sqrt(1 - rho**2) if altered == "sine" else rho
    return [score, score], [cosine * norms, cosine * np.sqrt(d_k)]


@tested(
    "sdpa-shift",
    latex=r"""\frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}
= \frac{\exp\left( S^{ij} - m^i \right)}{\sum_{j'} \exp\left( S^{ij'} - m^i \right)}""",
    alterations=("column",),
)
def shift(rng, altered):
    s = rng.normal(size=(T, S))
    m = s.max(0 if altered else 1, keepdims=True)
    return exact_weights(s), exact_weights(s - m)


@tested(
    "sdpa-lse",
    latex=r"""\begin{aligned}
L^i &= m^i + \log \sum_j \exp\left( S^{ij} - m^i \right), \\
A^{ij} &= \exp\left( S^{ij} - L^i \right)
\end{aligned}""",
    alterations=("sign", "maximum"),
)
def lse(rng, altered):
    q, k, v = operands(rng)
    s = exact_scores(np.asarray(q), np.asarray(k)) / np.sqrt(D_K)
    m = s.max(-1)
    total = np.log(np.exp(s - m[:, None]).sum(-1))
    value = {"sign": m - total, "maximum": total}.get(altered, m + total)
    left = scaled_dot_product_attention(q, k, v, return_lse=True)[1]
    weights = attention_weights(q, k)
    return (
        np.concatenate([np.asarray(left)[:, None], weights], axis=1),
        np.concatenate([value[:, None], np.exp(s - value[:, None])], axis=1),
    )


@tested(
    "sdpa-bias",
    latex=r"""\begin{gathered}
A^{ij} = \frac{\exp\left( S^{ij} + B^{ij} \right)}
{\sum_{j'} \exp\left( S^{ij'} + B^{ij'} \right)}, \\[1ex]
B^{ij} = \begin{cases} 0 & \text{if } i \text{ may attend to } j \\
-\infty & \text{if not} \end{cases}
\end{gathered}""",
    alterations=("polarity",),
)
def bias(rng, altered):
    q, k, _ = operands(rng)
    visible = np.tri(T, S, 1, dtype=bool)
    s = exact_scores(np.asarray(q), np.asarray(k)) / np.sqrt(D_K)
    b = np.where(~visible if altered else visible, 0.0, -np.inf)
    return attention_weights(q, k, mask=jnp.asarray(visible)), exact_weights(s + b)


@tested(
    "sdpa-causal",
    latex=r"j \le i + t_0",
    alterations=("offset", "sign"),
)
def causal_offset(rng, altered):
    t_0 = S - T
    left = causal(query_offset=t_0).materialise(T, S)
    first = {"offset": 0, "sign": -t_0}.get(altered, t_0)
    return left, [[j <= i + first for j in range(S)] for i in range(T)]


def layer(rng):
    params = init_multi_head(jax.random.key(3), d_model=10, num_heads=5)
    x = jnp.asarray(rng.normal(size=(T, 10)), jnp.float32)
    y, inside = multi_head_attention(params, x, return_intermediates=True)
    return params, np.asarray(x), y, np.asarray(inside.weights)


@tested(
    "sdpa-average",
    latex=r"""\sum_j A^{hij}\, V^{hj} = \sum_j A^{hij} \left( x^j W_V^h \right)
= \Big( \sum_j A^{hij} x^j \Big) W_V^h""",
    alterations=("token",),
)
def average(rng, altered):
    params, x, _, a = layer(rng)
    inside = multi_head_attention(params, jnp.asarray(x), return_intermediates=True)[1]
    w_v = np.asarray(params.w_v)
    middle = np.array(
        [
            [sum(a[h, i, j] * (x[j] @ w_v[:, h]) for j in range(T)) for i in range(T)]
            for h in range(5)
        ]
    )
    mixed = np.einsum("hij,jb->hib", a, np.roll(x, 1, axis=0) if altered else x)
    right = np.einsum("hib,bhc->hic", mixed, w_v)
    return np.stack([inside.head_outputs] * 2), np.stack([middle, right])


@tested(
    "sdpa-token",
    latex=r"y^i = \sum_h \Big( \sum_j A^{hij}\, x^j W_V^h \Big) W_O^h",
    alterations=("head", "transpose"),
)
def token(rng, altered):
    params, x, y, a = layer(rng)
    w_v, w_o = np.asarray(params.w_v), np.asarray(params.w_o)
    if altered == "head":
        w_o = np.roll(w_o, 1, axis=0)
    if altered == "transpose":
        a = np.swapaxes(a, -1, -2)
    right = [
        sum(sum(a[h, i, j] * (x[j] @ w_v[:, h]) for j in range(T)) @ w_o[h] for h in range(5))
        for i in range(T)
    ]
    return y, right
