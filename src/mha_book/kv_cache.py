r"""The cache of keys and values: what a decoder keeps, so that a new token costs one query.

Shapes: ``B`` sequences, ``K`` key/value heads, ``S`` slots (the capacity), ``H`` width of keys,
``C`` width of values, ``T`` new tokens. Keys are stored transposed, ``(B, K, H, S)``: the product
with few queries then runs along the slots as they lie in memory, and is the faster on a CPU, where
XLA may write keys in the other order anew first (``benchmarks/decode.py``). New entries are written
into the arrays in place where the caller donates the cache to ``jax.jit``.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_axis, check_floating, check_integers

__all__ = ["KVCache", "append", "init_cache"]


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
        left: how many tokens before its own a query sees, as in
            :func:`~mha_book.masks.sliding_window`; None for all. A constant of the pytree.
    """

    keys: Any  # Float[Array, "B K H S"]; unchecked, since JAX builds pytrees of other things too
    values: Any  # Float[Array, "B K S C"]
    lengths: Any  # Int[Array, " B"]
    left: int | None = field(default=None, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """``S``, the number of slots."""
        return self.values.shape[2]


def init_cache(
    batch: int,
    num_kv_heads: int,
    capacity: int,
    head_dim: int,
    *,
    value_dim: int | None = None,
    left: int | None = None,
    dtype: Any = jnp.float32,
) -> KVCache:
    """Return an empty cache.

    Args:
        batch: ``B``.
        num_kv_heads: ``K``; 0 for a layer without heads, of which only the lengths are kept.
        capacity: ``S``, the most tokens of a sequence; with ``left`` at least ``left + 1``, and
            ``left + T`` to let ``T`` new tokens attend at once.
        head_dim: ``H``.
        value_dim: ``C``; None for ``H``.
        left: how many tokens before its own a query sees; None for all.
        dtype: of keys and values.

    Returns:
        The cache.

    Raises:
        ValueError: a size is no integer or too small, ``left`` is negative, or the capacity does
            not hold the window.

    Example:
        >>> init_cache(2, 3, capacity=16, head_dim=4).keys.shape
        (2, 3, 4, 16)
    """
    value_dim = head_dim if value_dim is None else value_dim
    sizes = {"batch": batch, "num_kv_heads": num_kv_heads, "capacity": capacity}
    for name, size in {**sizes, "head_dim": head_dim, "value_dim": value_dim}.items():
        least = 0 if name == "num_kv_heads" else 1
        what = "a positive integer" if least else "a non-negative integer"
        check(isinstance(size, int) and size >= least, name, what, repr(size))
    if left is not None:
        check(isinstance(left, int) and left >= 0, "left", "a non-negative integer", repr(left))
        check(capacity > left, "capacity", f"left + 1 = {left + 1} slots or more", capacity)
    keys = jnp.zeros((batch, num_kv_heads, head_dim, capacity), dtype)
    values = jnp.zeros((batch, num_kv_heads, capacity, value_dim), dtype)
    return KVCache(keys, values, jnp.zeros((batch,), jnp.int32), left)


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

    Returns:
        The new cache.

    Raises:
        ValueError: an axis or dtype does not fit, or a sequence grows longer than the capacity and
            there is no window. Inside ``jax.jit`` lengths are not known and nothing can be raised:
            what exceeds the capacity is not stored, the lengths show it, and
            :func:`~mha_book.cached_attention.attend_cached` answers that sequence with NaN.

    Example:
        >>> new = jnp.ones((1, 2, 3, 4))
        >>> append(init_cache(1, 2, 8, 4), new, new).lengths.tolist()
        [3]
    """
    counts = _check_new(cache, key, value, counts)
    start, length = cache.lengths, cache.lengths + counts
    new = jnp.arange(key.shape[2], dtype=jnp.int32)[None, :]  # (1, T)
    position = start[:, None] + new  # (B, T)
    slot = position
    stored = new < counts[:, None]
    if cache.left is not None:
        slot = position % cache.capacity
        stored &= position >= length[:, None] - cache.capacity
    slot = jnp.where(stored, slot, cache.capacity)  # out of bounds: dropped
    row = jnp.arange(key.shape[0])[:, None]
    key, value = (jnp.swapaxes(x, 1, 2) for x in (key, value))  # (B, T, K, H), (B, T, K, C)
    keys = cache.keys.at[row, :, :, slot].set(key, mode="drop")
    values = cache.values.at[row, :, slot].set(value, mode="drop")
    return KVCache(keys, values, length, cache.left)


def _check_new(cache: KVCache, key: Array, value: Array, counts: Any) -> Int[Array, " B"]:
    """Check what is appended and return the counts."""
    batch, heads, width, capacity = cache.keys.shape
    for array, name, last in ((key, "key", width), (value, "value", cache.values.shape[-1])):
        check_floating(array, name, cache.keys, "the cache")
        shape, axes = tuple(array.shape), "(B, K, T, H)" if name == "key" else "(B, K, T, C)"
        fits = len(shape) == 4 and (*shape[:2], shape[3]) == (batch, heads, last)
        what = f"axes {axes} = ({batch}, {heads}, T, {last}), as the cache has"
        check(fits, name, what, f"shape {shape}")
    check_axis(value, "value", 2, "(B, K, T, C)", key.shape[2], "key")
    if counts is None:
        counts = jnp.full((batch,), key.shape[2], jnp.int32)
    check_integers(counts, "counts")
    what = f"one number for each sequence, axes (B,) = ({batch},)"
    check(tuple(counts.shape) == (batch,), "counts", what, f"shape {tuple(counts.shape)}")
    lengths = cache.lengths + counts.astype(jnp.int32)
    if cache.left is None and not isinstance(lengths, jax.core.Tracer):
        what = f"room for every new token: at most {capacity} tokens a sequence"
        check(bool((lengths <= capacity).all()), "cache", what, f"lengths {lengths.tolist()}")
    return counts.astype(jnp.int32)
