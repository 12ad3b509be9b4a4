"""The tested equations of the chapter on what heads cost."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import attention_weights, init_multi_head, multi_head_attention
from mha_book.costs import attention_size, cache_bytes, score_bytes
from mha_book.counting import entry_count, traced_matmul_flops
from mha_book.multihead import project_heads
from tests.equations import tested

T, N, K, H, C, D = 7, 6, 3, 5, 2, 11  # positions, heads, key heads, widths of key, value, model


def shapes(n=N, k=K, h=H, c=C, d=D):
    return jax.eval_shape(
        lambda key: init_multi_head(key, d, n, num_kv_heads=k, head_dim=h, value_dim=c),
        jax.random.key(0),
    )


def kept(part):
    """Keys and values, or scores, as the layer makes them for one sequence."""
    x = jax.ShapeDtypeStruct((T, D), jnp.float32)
    if part == "cache":
        return [jax.eval_shape(project_heads, x, w) for w in (shapes().w_k, shapes().w_v)]
    inside = jax.eval_shape(
        lambda p, x: multi_head_attention(p, x, return_intermediates=True)[1], shapes(), x
    )
    return inside.weights


@tested(
    "cost-parameters",
    latex=r"P = \underbrace{DNH}_{W_Q} + \underbrace{DKH}_{W_K} + \underbrace{DKC}_{W_V} "
    r"+ \underbrace{NCD}_{W_O}",
    alterations=("heads", "sign"),
)
def parameters(rng, altered):
    k = N if altered == "heads" else K
    output = -N * C * D if altered == "sign" else N * C * D
    return entry_count(shapes()), D * N * H + D * k * H + D * k * C + output


@tested("cost-square", latex=r"P = 4 D^2 \quad \text{where } K = N \text{ and } NH = NC = D")
def square(rng, altered):
    widths = {"n": 6, "k": 3 if altered else 6, "h": 7, "c": 7, "d": 42}
    return entry_count(shapes(**widths)), 4 * 42**2


@tested(
    "cost-merge",
    latex=r"""
\begin{aligned}
Y^{id} &= A^{ij}\, X^{jb}\, W_V^{bc}\, W_O^{cd} = A^{ij}\, X^{jb}\, M^{bd} \\
M^{bd} &= W_V^{bc}\, W_O^{cd}
\end{aligned}
""",
    alterations=("order", "transpose"),
)
def merge(rng, altered):
    params = init_multi_head(jax.random.key(3), D, 1, head_dim=H, value_dim=D)
    x = rng.normal(size=(T, D))
    y, inside = multi_head_attention(params, jnp.asarray(x, jnp.float32), return_intermediates=True)
    w_v, w_o = np.asarray(params.w_v)[:, 0], np.asarray(params.w_o)[0]
    a = np.asarray(inside.weights)[0]
    a = a.T if altered == "transpose" else a
    return y, a @ x @ (w_o @ w_v if altered == "order" else w_v @ w_o)


@tested(
    "cost-flops",
    latex=r"F = \underbrace{2\, T\, P}_{\text{projections}} "
    r"+ \underbrace{2\, N\, T S\, (H + C)}_{\text{pairs}}",
    alterations=("heads", "causal"),
)
def flops(rng, altered):
    x = jax.ShapeDtypeStruct((T, D), jnp.float32)
    counted = traced_matmul_flops(multi_head_attention, shapes(), x)
    heads = K if altered == "heads" else N
    pairs = T * (T + 1) // 2 if altered == "causal" else T * T
    return counted, 2 * T * entry_count(shapes()) + 2 * heads * pairs * (H + C)


@tested("cost-balance", latex=r"S^\ast = \frac{P}{N\,(H + C)}")
def balance(rng, altered):
    n, k, h, d = 6, 3, 5, 10  # both of one size at S = D (N + K) / N = 15
    s = 16 if altered else entry_count(shapes(n, k, h, h, d)) // (n * 2 * h)
    x = jax.ShapeDtypeStruct((s, d), jnp.float32)
    whole = traced_matmul_flops(multi_head_attention, shapes(n, k, h, h, d), x)
    return whole, 2 * (2 * s * entry_count(shapes(n, k, h, h, d)))


@tested("cost-causal", latex=r"\sum_{i=1}^{T} i = \frac{T\,(T + 1)}{2}")
def causal_pairs(rng, altered):
    q = jnp.asarray(rng.normal(size=(T, H)), jnp.float32)
    seen = int((np.asarray(attention_weights(q, q, is_causal=True)) > 0).sum())
    return seen, T * (T - 1) / 2 if altered else T * (T + 1) / 2


@tested(
    "cost-bytes",
    latex=r"M_{\text{cache}} = b\, S\, K\, (H + C) \qquad M_{\text{scores}} = b\, N\, T\, S",
    alterations=("cache", "scores"),
)
def memory(rng, altered):
    size = attention_size(D, N, K, H, C)
    counted = [4 * entry_count(kept("cache")), 4 * entry_count(kept("scores"))]
    cache = 4 * T * (N if altered == "cache" else K) * (H + C)
    scores = 4 * (K if altered == "scores" else N) * T * T
    if altered is None:
        assert counted[0] == cache_bytes(size, position_count=T, bytes_per_number=4)
        assert counted[1] == score_bytes(size, pair_count=T * T, bytes_per_number=4)
    return counted, [cache, scores]
