r"""The cache of keys and values: what a decoder keeps, so that a new token costs one query.

Shapes: ``B`` sequences, ``K`` key/value heads, ``S`` slots (the capacity), ``H`` width of keys,
``C`` width of values, ``T`` new tokens, ``N`` query heads, ``D`` width of the model. Keys are
stored transposed, ``(B, K, H, S)``: the product with few queries then runs along the slots as they
lie in memory, and is the faster on a CPU, where XLA may write keys in the other order anew first
(``benchmarks/decode.py``). New entries are written into the arrays in place where the caller
donates the cache to ``jax.jit``.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mha_book._checks import check, check_axes, check_float_dtype, check_size, check_type
from mha_book.attention.dispatch import attend
from mha_book.masks import Mask
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.multihead.parameters import FusedMultiHeadParams, MultiHeadParams

__all__ = ["KVCache", "append", "attend_cached", "cached_multi_head_attention", "init_cache"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of the tokens so far, in arrays of fixed size.

    Without a window, the token at position ``p`` has slot ``p``. With one, slot ``p mod S``: a ring
    buffer, in which a new token takes the place of one that no later query sees. Make one with
    :func:`init_cache`.

    Args:
        keys: ``(B, K, H, S)``, rotated already where the layer rotates.
        values: ``(B, K, S, C)``.
        lengths: ``(B,)``, int32, how many tokens each sequence has had.
        window: how many tokens a query sees, its own included, as in
            :func:`~mha_book.masks.sliding_window`; None for all. A constant of the pytree.
    """

    keys: Any  # Float[Array, "B K H S"]; unchecked, since JAX builds pytrees of other things too
    values: Any  # Float[Array, "B K S C"]
    lengths: Any  # Int[Array, " B"]
    window: int | None = field(default=None, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """``S``, the number of slots."""
        slots: int = self.values.shape[2]
        return slots


def init_cache(
    batch: int,
    num_kv_heads: int,
    capacity: int,
    head_dim: int,
    *,
    value_dim: int | None = None,
    window: int | None = None,
    dtype: Any = jnp.float32,
) -> KVCache:
    """Return an empty cache of ``B``, ``K``, ``S``, ``H`` and ``C`` (``H`` where not given).

    A layer whose heads are all removed has ``K = 0``, and only lengths are kept. ``S`` is the most
    tokens of a sequence; with a ``window``, how many tokens a query sees, its own included, it is
    at least that, and ``window + T - 1`` to let ``T`` new tokens attend at once.

    Example:
        >>> init_cache(2, 3, capacity=16, head_dim=4).keys.shape
        (2, 3, 4, 16)
    """
    value_dim = head_dim if value_dim is None else value_dim
    sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "capacity": capacity}
    for name, size in {**sizes, "head_dim": head_dim, "value_dim": value_dim}.items():
        least = 0 if name == "num_kv_heads" else 1
        what = "a positive integer" if least else "a non-negative integer"
        check_size(size, name, least, what)
    if window is not None:
        check_size(window, "window")
        window = int(window)
        check(capacity >= window, "capacity", f"the window, {window} slots, or more", capacity)
    check_float_dtype(dtype)
    keys = jnp.zeros((batch, num_kv_heads, head_dim, capacity), dtype)
    values = jnp.zeros((batch, num_kv_heads, capacity, value_dim), dtype)
    return KVCache(keys, values, jnp.zeros((batch,), jnp.int32), window)


def append(
    cache: KVCache,
    key: Float[Array, "B K T H"],
    value: Float[Array, "B K T C"],
    counts: Int[Array, " B"] | None = None,
) -> KVCache:
    """Return the cache with new tokens behind those of each sequence.

    Under ``jax.jit`` with the cache donated, only the new entries are written. Of more new tokens
    than a ring buffer holds, the last ones stay.

    Args:
        cache: the cache.
        key: ``(B, K, T, H)``.
        value: ``(B, K, T, C)``.
        counts: ``(B,)``, how many of the ``T`` tokens are real, from the first on; None for all.

    Raises:
        ValueError: an axis or dtype does not fit, a count is not from 0 to ``T``, or a sequence
            grows longer than the capacity and there is no window. Inside ``jax.jit`` numbers are
            not known and nothing can be raised: a count outside 0 to ``T`` is the nearer of them;
            what exceeds the capacity is not stored, the lengths show it, and
            :func:`~mha_book.multihead.cache.attend_cached` answers that sequence with NaN.

    Example:
        >>> new = jnp.ones((1, 2, 3, 4))
        >>> append(init_cache(1, 2, 8, 4), new, new).lengths.tolist()
        [3]
    """
    check_type(cache, "cache", KVCache, "as init_cache gives it")
    counts = check_new(cache, key, value, counts)
    start, length = cache.lengths, cache.lengths + counts
    new = jnp.arange(key.shape[2], dtype=jnp.int32)[None, :]  # (1, T)
    position = start[:, None] + new  # (B, T)
    slot = position
    stored = new < counts[:, None]
    if cache.window is not None:
        slot = position % cache.capacity
        stored &= position >= length[:, None] - cache.capacity
    slot = jnp.where(stored, slot, cache.capacity)  # out of bounds: dropped
    return KVCache(*written(cache, key, value, slot), length, cache.window)


def written(cache: KVCache, key: Array, value: Array, slot: Array) -> tuple[Array, Array]:
    """Return the cache's keys and values with new ones in these slots ``(B, T)``."""
    row = jnp.arange(key.shape[0])[:, None]
    key, value = (jnp.swapaxes(x, 1, 2) for x in (key, value))  # (B, T, K, H), (B, T, K, C)
    if slot.size == 1:
        # XLA makes one write a slice, and on a CPU copies the cache if the same program also reads
        # it. Of two writes it makes a loop in place; the second is out of bounds and dropped.
        slot = jnp.concatenate([slot, jnp.full_like(slot, cache.capacity)], axis=1)
        key, value = (jnp.concatenate([x, x], axis=1) for x in (key, value))
    keys = cache.keys.at[row, :, :, slot].set(key, mode="drop")
    return keys, cache.values.at[row, :, slot].set(value, mode="drop")


def check_new(cache: KVCache, key: Array, value: Array, counts: Any) -> Int[Array, " B"]:
    """Check what is appended and return the counts."""
    sizes = dict(zip("BKHSC", (*cache.keys.shape, cache.values.shape[-1]), strict=True))
    check_axes(key, "key", "BKTH", sizes, Float, cache.keys, "the cache")
    check_axes(value, "value", "BKTC", sizes, Float, cache.keys, "the cache")
    real = checked_counts(cache, key.shape[2], counts)
    lengths = cache.lengths + real
    if cache.window is None and not isinstance(lengths, jax.core.Tracer):
        what = f"room for every new token: at most {cache.capacity} tokens a sequence"
        check(bool((lengths <= cache.capacity).all()), "cache", what, f"lengths {lengths.tolist()}")
    return real


def checked_counts(cache: KVCache, num_new: int, counts: Any) -> Int[Array, " B"]:
    """Return one count from 0 to ``T`` for each sequence, int32; all ``T`` for None."""
    batch = cache.lengths.shape[0]
    if counts is None:
        return jnp.full((batch,), num_new, jnp.int32)
    check_axes(counts, "counts", "B", {"B": batch}, Int)
    if not isinstance(counts, jax.core.Tracer):
        values = np.asarray(counts)
        fits = bool(((values >= 0) & (values <= num_new)).all())
        check(fits, "counts", f"numbers from 0 to {num_new}, the new tokens", values.tolist())
    counts = jnp.asarray(counts)
    return jnp.clip(counts.astype(jnp.int32), 0, num_new)


def cache_mask(cache: KVCache, num_new: int, counts: Int[Array, " B"] | None = None) -> Mask:
    """Return which slots the newest tokens may attend to.

    There are ``num_new`` queries, one for each token that was appended last, of which ``counts``
    ``(B,)`` are real. The mask has bounds and lengths; of a ring buffer it is an array
    ``(B, 1, T, S)``.

    Raises:
        ValueError: a ring buffer has fewer than ``window + T - 1`` slots: a key that the first of
            the new tokens sees has been overwritten by the last of them. A sequence has had fewer
            tokens than are said to be new: they are appended first. Inside ``jax.jit`` lengths are
            not known, and such a sequence is answered with NaN.
    """
    check_type(cache, "cache", KVCache, "as init_cache gives it")
    check_size(num_new, "num_new", 0, "an integer, 0 or more")
    counts = checked_counts(cache, num_new, counts)
    start = cache.lengths - counts
    if not isinstance(start, jax.core.Tracer):
        what = f"tokens appended before they attend, {counts.tolist()} or more"
        check(bool((start >= 0).all()), "cache", what, f"lengths {cache.lengths.tolist()}")
    if cache.window is None:
        return Mask(upper=start, query_lengths=counts)
    least = cache.window + num_new - 1
    what = f"window + T - 1 = {least} slots or more, to let {num_new} new tokens attend"
    check(cache.capacity >= least, "cache (its capacity)", what, cache.capacity)
    query, slot = (jnp.arange(n, dtype=jnp.int32) for n in (num_new, cache.capacity))
    last = cache.lengths[:, None, None, None] - 1  # (B, 1, 1, 1)
    held = last - (last - slot[None, None, None, :]) % cache.capacity  # (B, 1, 1, S): its position
    query = query[None, None, :, None]
    asking = start[:, None, None, None] + query  # (B, 1, T, 1)
    seen = (held >= 0) & (held <= asking) & (held > asking - cache.window)
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
        implementation: passed to :func:`~mha_book.attention.dispatch.attend`.

    Returns:
        ``(B, N, T, C)``; NaN for a sequence that has grown longer than the capacity, or has had
        fewer tokens than are said to be new.

    Example:
        >>> from mha_book.multihead.cache import init_cache
        >>> new = jnp.ones((1, 2, 1, 4))
        >>> cache = append(init_cache(1, 2, 8, 4), new, new)
        >>> attend_cached(jnp.ones((1, 6, 1, 4)), cache).shape
        (1, 6, 1, 4)
    """
    check_type(cache, "cache", KVCache, "as init_cache gives it")
    check_axes(query, "query", "BNTH", {"B": cache.keys.shape[0], "H": cache.keys.shape[2]})
    counts = checked_counts(cache, query.shape[2], counts)
    mask = cache_mask(cache, query.shape[2], counts)
    if cache.window is None:
        query = _nan_where(cache.lengths > cache.capacity, query)
    attended = attend(
        query,
        jnp.swapaxes(cache.keys, -1, -2),  # (B, K, S, H): a view for the compiler, no copy
        cache.values,
        mask=mask,
        scale=scale,
        layout="NTH",
        implementation=implementation,
    )
    return _nan_where(cache.lengths < counts, attended)


def _nan_where(rows: Bool[Array, " B"], x: Float[Array, "B N T C"]) -> Float[Array, "B N T C"]:
    """Return ``x`` with NaN in some rows; itself where it is known that there are none."""
    if not isinstance(rows, jax.core.Tracer) and not np.asarray(rows).any():
        return x
    return jnp.where(rows[:, None, None, None], jnp.asarray(jnp.nan, x.dtype), x)


def cached_multi_head_attention(
    params: MultiHeadParams | FusedMultiHeadParams,
    x: Float[Array, "B T D"],
    cache: KVCache,
    counts: Int[Array, " B"] | None = None,
    *,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    scale: float | Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "B T D"], KVCache]:
    """Apply the layer to new tokens alone: what causal self-attention gives in their rows.

    ``x`` is ``(B, T, D)``, the new tokens, one each in a step of decoding; ``cache`` has the keys
    and values of those before. ``counts`` are as in :func:`append`, ``angles`` ``(B, 1, T, H/2)``
    the rotary angles of the new positions, and the other options as in :func:`attend_cached`.

    Returns:
        The output ``(B, T, D)`` and the new cache.

    Example:
        >>> import jax
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> from mha_book.multihead.cache import init_cache
        >>> params = init_multi_head(jax.random.key(0), d_model=8, num_heads=2)
        >>> out, cache = cached_multi_head_attention(
        ...     params, jnp.ones((1, 1, 8)), init_cache(1, 2, 16, 4)
        ... )
        >>> out.shape, cache.lengths.tolist()
        ((1, 1, 8), [1])
    """
    check_type(cache, "cache", KVCache, "as init_cache gives it")
    query, key, value = project_qkv(params, x, angles=angles)
    cache = append(cache, key, value, counts)  # counts: new tokens of each sequence
    heads = attend_cached(query, cache, counts, scale=scale, implementation=implementation)
    return project_output(params, heads), cache
