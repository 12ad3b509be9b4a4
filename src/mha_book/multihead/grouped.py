r"""Sharing key and value heads among query heads, and converting a layer from one to the other.

Query head $h$ of $N$ reads key/value head $\lfloor h/G \rfloor$ of $K$, with $G = N/K$: $K = N$ is
multi-head attention, $K = 1$ multi-query, between them lies grouped attention. The conversions here
take the parameters of a layer and give those of another; none of them trains.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``G`` query heads to
each of them, ``H`` width of queries and keys, ``C`` width of values.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import RngKey, accumulator_dtype, as_key, check, check_size
from mha_book.multihead.parameters import MultiHeadParams, check_params

__all__ = ["fit_groups", "mean_pool_groups", "repeat_kv_heads"]


def kv_head_index(num_heads: int, num_kv_heads: int) -> Int[Array, " N"]:
    r"""Return which key/value head each query head reads, $\lfloor h/G \rfloor$.

    Heads of a group are neighbours: the key heads are *repeated*, 0 0 1 1, not tiled, 0 1 0 1.

    Without query heads, ``N = 0``, there may be any number of key heads.
    """
    check_size(num_heads, "num_heads", 0, "0 or a positive integer")
    if num_heads == 0:  # a layer without heads, as after pruning
        check_size(num_kv_heads, "num_kv_heads", 0, "0 or a positive integer")
        return jnp.arange(0)
    return jnp.arange(int(num_heads)) // _group_size(int(num_heads), num_kv_heads)


def repeat_kv_heads(params: MultiHeadParams) -> MultiHeadParams:
    """Give every query head a key/value head of its own: the same layer with ``K = N``, exactly.

    Each of the ``N`` is a copy of the one that its query head read before.

    Example:
        >>> from mha_book import init_multi_head
        >>> shared = init_multi_head(jax.random.key(0), 8, 4, num_kv_heads=2)
        >>> repeat_kv_heads(shared).w_k.shape
        (8, 4, 2)
    """
    check_params(params)
    heads = kv_head_index(params.w_q.shape[1], params.w_k.shape[1])
    return _with_key_heads(params, lambda weight: jnp.take(weight, heads, axis=-2))


def mean_pool_groups(params: MultiHeadParams, num_kv_heads: int) -> MultiHeadParams:
    """Replace the key and value heads of each group by their mean.

    Args:
        params: a layer whose key/value heads ``num_kv_heads`` divides.
        num_kv_heads: how many are to remain.

    Returns:
        A layer with ``num_kv_heads`` key/value heads; queries and output unchanged.

    References:
        Ainslie et al., GQA, 2023, section 2.1.

    Example:
        >>> from mha_book import init_multi_head
        >>> mean_pool_groups(init_multi_head(jax.random.key(0), 8, 4), 1).w_v.shape
        (8, 1, 2)
    """
    check_params(params)
    return _with_key_heads(params, lambda w: _in_groups(w, params, num_kv_heads).mean(axis=-2))


def select_from_groups(
    params: MultiHeadParams, num_kv_heads: int, member: int = 0
) -> MultiHeadParams:
    """Keep one key/value head of each group, the one numbered ``member`` within it."""
    check_params(params)
    group = _group_size(params.w_k.shape[1], num_kv_heads)
    what = f"a number from 0 to {group - 1}"
    check_size(member, "member", 0, what)
    check(member < group, "member", what, member)
    return _with_key_heads(params, lambda w: _in_groups(w, params, num_kv_heads)[..., member, :])


def reinitialize_groups(
    rng_key: RngKey, params: MultiHeadParams, num_kv_heads: int
) -> MultiHeadParams:
    """Draw the key and value heads anew: what a conversion has to beat.

    As :func:`mean_pool_groups`, with fresh keys and values of the same root mean square as the
    old, and biases of zero.
    """
    pooled = mean_pool_groups(params, num_kv_heads)
    keys = jax.random.split(as_key(rng_key), 2)
    w_k, w_v = (
        _root_mean_square(old) * jax.random.normal(key, new.shape, new.dtype)
        for key, old, new in zip(keys, (params.w_k, params.w_v), pooled[1:3], strict=True)
    )
    zero_k, zero_v = (None if b is None else jnp.zeros_like(b) for b in (pooled.b_k, pooled.b_v))
    return pooled._replace(w_k=w_k, w_v=w_v, b_k=zero_k, b_v=zero_v)


def fit_groups(params: MultiHeadParams, num_kv_heads: int) -> MultiHeadParams:
    r"""Share key and value heads so that the products of each head change least.

    A head acts through $W_Q^h W_K^{h\top}$ and $W_V^h W_O^h$ alone. For each group this minimises
    $\sum_h \lVert \hat W_Q^h \hat W_K^\top - W_Q^h W_K^{h\top} \rVert^2$ and
    $\sum_h \lVert \hat W_V \hat W_O^h - W_V^h W_O^h \rVert^2$
    over one $\hat W_K$ and $\hat W_V$ for the group and $\hat W_Q^h$, $\hat W_O^h$ for each head.
    The best (Eckart and Young) are the leading left singular vectors of the $W_K^h W_Q^{h\top}$, or
    $W_V^h W_O^h$, side by side. Biases of queries and values count as one more row of their
    matrix; a bias of the keys adds the same to all scores of a query, and is left out.

    Args:
        params: as in :func:`mean_pool_groups`, self-attention (one width ``D`` of all inputs).
        num_kv_heads: how many key/value heads are to remain, each as wide as before.

    Returns:
        A layer of the same shapes as from :func:`mean_pool_groups`; queries and output changed too.
        Where queries and keys are rotated, the fit holds for equal positions alone.

    Not for use under ``jit``: on a CPU, jaxlib 0.10 can wait for ever where one program has several
    batched factorisations that do not depend on each other.

    References:
        Eckart and Young, The approximation of one matrix by another of lower rank, 1936.

    Example:
        >>> from mha_book import init_multi_head
        >>> fit_groups(init_multi_head(jax.random.key(0), 8, 4), 2).w_o.shape
        (4, 2, 8)
    """
    given = params
    full = repeat_kv_heads(given)
    params, full = jax.tree.map(lambda w: w.astype(accumulator_dtype(w.dtype)), (given, full))
    num_heads, d_model = full.w_q.shape[1], full.w_q.shape[0]
    group = _group_size(num_heads, num_kv_heads)
    _group_size(params.w_k.shape[1], num_kv_heads)  # the old groups must lie within the new
    w_q, w_v = _with_bias_row(full.w_q, full.b_q), _with_bias_row(full.w_v, full.b_v)
    by_group = (num_kv_heads, group)
    widths = (full.w_k.shape[2], full.w_v.shape[2])
    narrowest = min(d_model, full.w_k.shape[0], full.w_v.shape[0], full.w_o.shape[2])
    check(max(widths) <= narrowest, "params", f"heads at most {narrowest} wide", f"widths {widths}")

    def split(weight: Array) -> Array:  # (rows, N, X) -> (K, G, rows, X)
        return jnp.reshape(jnp.moveaxis(weight, 1, 0), (*by_group, weight.shape[0], -1))

    out = jnp.reshape(full.w_o, (*by_group, *full.w_o.shape[1:]))  # (K, G, C, D)
    keys, queries = _best_shared(split(full.w_k), jnp.swapaxes(split(w_q), -1, -2))
    values, outputs = _best_shared(split(w_v), out)
    queries = jnp.swapaxes(queries, -1, -2)  # (K, G, D (+1), H)
    queries = jnp.moveaxis(jnp.reshape(queries, (num_heads, *queries.shape[2:])), 0, 1)
    keys, values = jnp.moveaxis(keys, 0, 1), jnp.moveaxis(values, 0, 1)
    fitted = MultiHeadParams(
        w_q=queries[:d_model],
        w_k=keys,
        w_v=values[: full.w_v.shape[0]],
        w_o=jnp.reshape(outputs, (num_heads, *outputs.shape[2:])),
        b_q=None if full.b_q is None else queries[d_model],
        b_k=None if params.b_k is None else jnp.zeros_like(keys[0]),
        b_v=None if full.b_v is None else values[-1],
        b_o=params.b_o,
    )
    narrowed: MultiHeadParams = jax.tree.map(lambda w: w.astype(given.w_q.dtype), fitted)
    return narrowed


def _best_shared(
    left: Float[Array, "K G rows X"], right: Float[Array, "K G X columns"]
) -> tuple[Array, Array]:
    """Return one ``(K, rows, X)`` and many ``(K, G, X, columns)`` with the nearest products."""
    width = left.shape[-1]
    # rightᵀ = q r, and the columns of q are orthonormal: the products side by side have the left
    # singular vectors of the left @ rᵀ side by side, which have G·X columns instead of G·columns.
    r = jnp.linalg.qr(jnp.swapaxes(right, -1, -2), mode="r")  # (K, G, X, X)
    small = jnp.matmul(left, jnp.swapaxes(r, -1, -2))  # (K, G, rows, X)
    side_by_side = jnp.reshape(jnp.moveaxis(small, 1, 2), (left.shape[0], left.shape[2], -1))
    shared = jnp.linalg.svd(side_by_side, full_matrices=False)[0][..., :width]  # (K, rows, X)
    own = jnp.matmul(jnp.matmul(jnp.swapaxes(shared, -1, -2)[:, None], left), right)
    return shared, own


def _with_bias_row(weight: Array, bias: Array | None) -> Array:
    return weight if bias is None else jnp.concatenate((weight, bias[None]))


def _with_key_heads(params: MultiHeadParams, change: Callable[[Array], Array]) -> MultiHeadParams:
    """Apply ``change`` to the four arrays that have an axis of key/value heads."""
    b_k, b_v = (None if b is None else change(b) for b in (params.b_k, params.b_v))
    return params._replace(w_k=change(params.w_k), w_v=change(params.w_v), b_k=b_k, b_v=b_v)


def _in_groups(weight: Array, params: MultiHeadParams, num_kv_heads: int) -> Array:
    """Return ``(…, K, G, X)`` from ``(…, K·G, X)``."""
    group = _group_size(params.w_k.shape[1], num_kv_heads)
    return jnp.reshape(weight, (*weight.shape[:-2], num_kv_heads, group, weight.shape[-1]))


def _group_size(num_heads: int, num_kv_heads: int) -> int:
    what = f"a positive divisor of {num_heads}"
    check_size(num_kv_heads, "num_kv_heads", 1, what)
    fits = num_heads > 0 and num_heads % num_kv_heads == 0
    check(
        fits, "num_kv_heads", what if num_heads else "heads to share: there are none", num_kv_heads
    )
    return num_heads // int(num_kv_heads)


def _root_mean_square(x: Array) -> Array:
    widened = x.astype(accumulator_dtype(x.dtype))  # squares of half precision would overflow
    return jnp.sqrt(jnp.mean(jnp.square(widened))).astype(x.dtype)
