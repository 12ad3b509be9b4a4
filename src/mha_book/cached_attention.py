"""Attention over a cache: what the newest tokens see, and the layer applied to them alone.

Shapes: ``B`` sequences, ``N`` query heads, ``K`` key/value heads, ``T`` new tokens, ``S`` slots of
the cache, ``H`` width of queries and keys, ``C`` width of values, ``D`` width of the model.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import check
from mha_book.dispatch import attend
from mha_book.heads import combine_heads
from mha_book.kv_cache import KVCache, append
from mha_book.layers import affine
from mha_book.masks import Mask
from mha_book.multihead import project_heads
from mha_book.parameters import MultiHeadParams
from mha_book.rope import rotate

__all__ = ["attend_cached", "cache_mask", "cached_multi_head_attention"]


def cache_mask(cache: KVCache, num_new: int, counts: Int[Array, " B"] | None = None) -> Mask:
    """Return which slots the newest tokens may attend to.

    Args:
        cache: the cache, the new tokens appended.
        num_new: ``T``, how many queries there are: one for each new token.
        counts: ``(B,)``, how many of them are real; None for all.

    Returns:
        The mask of ``T`` queries over ``S`` slots: bounds and lengths, or for a ring buffer an
        array ``(B, 1, T, S)``.

    Raises:
        ValueError: a ring buffer has fewer than ``left + T`` slots: a key that the first of the new
            tokens sees has been overwritten by the last of them.

    Example:
        >>> from mha_book.kv_cache import init_cache
        >>> new = jnp.ones((1, 1, 2, 1))
        >>> mask = cache_mask(append(init_cache(1, 1, 3, 1), new, new), 2)
        >>> mask.materialise(2, 3).astype(int).tolist()
        [[[[1, 0, 0], [1, 1, 0]]]]
    """
    counts = jnp.full_like(cache.lengths, num_new) if counts is None else counts
    start = cache.lengths - counts
    if cache.left is None:
        return Mask(upper=start, query_lengths=counts)
    least = cache.left + num_new
    what = f"left + T = {least} slots or more, to let {num_new} new tokens attend"
    check(cache.capacity >= least, "cache (its capacity)", what, cache.capacity)
    query, slot = (jnp.arange(n, dtype=jnp.int32) for n in (num_new, cache.capacity))
    last = cache.lengths[:, None, None, None] - 1  # (B, 1, 1, 1)
    held = last - (last - slot[None, None, None, :]) % cache.capacity  # (B, 1, 1, S): its position
    query = query[None, None, :, None]
    asking = start[:, None, None, None] + query  # (B, 1, T, 1)
    seen = (held >= 0) & (held <= asking) & (held >= asking - cache.left)
    return Mask(array=seen & (query < counts[:, None, None, None]))


def attend_cached(
    query: Float[Array, "B N T H"],
    cache: KVCache,
    counts: Int[Array, " B"] | None = None,
    *,
    scale: float | Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> Float[Array, "B N T C"]:
    """Let the newest tokens attend to all tokens of their sequence, themselves included.

    Args:
        query: ``(B, N, T, H)``, of the ``T`` tokens appended last.
        cache: the cache, these tokens appended.
        counts: ``(B,)``, how many of them are real; None for all. The output of others is zero.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        implementation: passed to :func:`~mha_book.dispatch.attend`.

    Returns:
        ``(B, N, T, C)``; NaN for a sequence that has grown longer than the capacity.

    Raises:
        ValueError: an axis does not fit, or as in :func:`cache_mask`.

    Example:
        >>> from mha_book.kv_cache import init_cache
        >>> new = jnp.ones((1, 2, 1, 4))
        >>> cache = append(init_cache(1, 2, 8, 4), new, new)
        >>> attend_cached(jnp.ones((1, 6, 1, 4)), cache).shape
        (1, 6, 1, 4)
    """
    check(query.ndim == 4, "query", "axes (B, N, T, H), that is rank 4", f"shape {query.shape}")
    if cache.left is None:
        overfull = (cache.lengths > cache.capacity)[:, None, None, None]
        query = jnp.where(overfull, jnp.full((), jnp.nan, query.dtype), query)
    return attend(
        query,
        jnp.swapaxes(cache.keys, -1, -2),  # (B, K, S, H): a view for the compiler, no copy
        cache.values,
        mask=cache_mask(cache, query.shape[2], counts),
        scale=scale,
        implementation=implementation,
    )


def cached_multi_head_attention(
    params: MultiHeadParams,
    x: Float[Array, "B T D"],
    cache: KVCache,
    counts: Int[Array, " B"] | None = None,
    *,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    scale: float | Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "B T D"], KVCache]:
    """Apply the layer to new tokens alone: what causal self-attention gives in their rows.

    Args:
        params: the weights.
        x: ``(B, T, D)``, the new tokens; one each in a step of decoding.
        cache: keys and values of the tokens before.
        counts: ``(B,)``, how many of the new tokens are real; None for all.
        angles: ``(B, 1, T, H/2)``, the rotary angles of their positions; None for no rotation.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        implementation: passed to :func:`~mha_book.dispatch.attend`.

    Returns:
        The output ``(B, T, D)`` and the new cache.

    Raises:
        ValueError: as in :func:`~mha_book.kv_cache.append` and :func:`attend_cached`.

    Example:
        >>> import jax
        >>> from mha_book.initialisers import init_multi_head
        >>> from mha_book.kv_cache import init_cache
        >>> params = init_multi_head(jax.random.key(0), d_model=8, num_heads=2)
        >>> out, cache = cached_multi_head_attention(
        ...     params, jnp.ones((1, 1, 8)), init_cache(1, 2, 16, 4)
        ... )
        >>> out.shape, cache.lengths.tolist()
        ((1, 1, 8), [1])
    """
    query = project_heads(x, params.w_q, params.b_q)  # (B, N, T, H)
    key = project_heads(x, params.w_k, params.b_k)  # (B, K, T, H)
    value = project_heads(x, params.w_v, params.b_v)  # (B, K, T, C)
    if angles is not None:
        query, key = rotate(query, angles), rotate(key, angles)
    cache = append(cache, key, value, counts)
    if params.w_q.shape[1]:
        heads = attend_cached(query, cache, counts, scale=scale, implementation=implementation)
    else:  # all removed, see mha_book.pruning
        heads = jnp.zeros((*query.shape[:-1], params.w_o.shape[1]), query.dtype)
    w_o = jnp.reshape(params.w_o, (-1, params.w_o.shape[-1]))  # (N·C, D)
    return affine(combine_heads(heads), w_o, params.b_o), cache
