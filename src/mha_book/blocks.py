"""Cutting the operands of attention into blocks of queries and of keys.

Shapes: ``X`` chunks of ``c`` key/value heads each, ``P`` blocks of queries, ``U`` blocks of keys,
``r`` rows of a block of queries (those of all heads of a group), ``u`` keys of a block of keys.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

__all__ = ["BlockSizes", "block_sizes", "cut_keys", "cut_queries", "join"]

ROWS, KEYS = 512, 512  # of a block; measured on CPUs (benchmarks/)
ROWS_LEVEL = 2048  # of queries that all see the same keys: nothing is lost at an edge then
SCORES = 2**20  # scores held at a time: 4 MiB in float32


class BlockSizes(NamedTuple):
    """How the operands are cut.

    Args:
        queries: positions of a block of queries.
        keys: positions of a block of keys.
        heads: key/value heads worked on together, a divisor of ``K``.
    """

    queries: int
    keys: int
    heads: int


def block_sizes(
    query_length: int, key_length: int, num_kv_heads: int, group: int, *, slanted: bool
) -> BlockSizes:
    """Return sizes of blocks that pad little and whose scores stay in the cache.

    Where all queries see the same keys a block has more rows. Where the keys move with the query,
    as under a causal mask, the scores that a block computes in vain grow with its rows.

    Args:
        query_length: ``T``.
        key_length: ``S``.
        num_kv_heads: ``K``.
        group: ``G``, query heads to each of them.
        slanted: whether the keys that a query may see depend on its position.

    Returns:
        The sizes.

    Example:
        >>> block_sizes(2048, 2048, 8, 1, slanted=True)
        BlockSizes(queries=512, keys=512, heads=4)
        >>> block_sizes(2048, 2048, 8, 1, slanted=False)
        BlockSizes(queries=2048, keys=512, heads=1)
    """
    rows = ROWS if slanted else ROWS_LEVEL
    queries, keys = _even(query_length, max(rows // group, 1)), _even(key_length, KEYS)
    fits = [c for c in range(1, num_kv_heads + 1) if c * group * queries * keys <= SCORES]
    heads = max((c for c in fits if num_kv_heads % c == 0), default=1)
    return BlockSizes(queries, keys, heads)


def cut_queries(rows: Array, sizes: BlockSizes) -> Array:
    """Cut ``(B, K, G, T, X)`` into blocks ``(X, P, c, r, X)``, padded with zeros.

    Args:
        rows: queries, or what else has a row for each query.
        sizes: how to cut.

    Returns:
        The blocks; a row of a block belongs to query head ``row // queries`` of the group.
    """
    batch, num_kv_heads, group, length, width = rows.shape
    count = -(-length // sizes.queries)
    rows = jnp.pad(rows, [(0, 0)] * 3 + [(0, count * sizes.queries - length), (0, 0)])
    chunks = batch * num_kv_heads // sizes.heads
    rows = jnp.reshape(rows, (chunks, sizes.heads, group, count, sizes.queries, width))
    rows = jnp.transpose(rows, (0, 3, 1, 2, 4, 5))
    return jnp.reshape(rows, (chunks, count, sizes.heads, group * sizes.queries, width))


def join(blocks: Array, shape: tuple[int, ...], sizes: BlockSizes) -> Array:
    """Undo :func:`cut_queries`; ``shape`` is ``(B, K, G, T, X)``."""
    chunks, count, heads, _, width = blocks.shape
    batch, num_kv_heads, group, length, _ = shape
    blocks = jnp.reshape(blocks, (chunks, count, heads, group, sizes.queries, width))
    rows = jnp.transpose(blocks, (0, 2, 3, 1, 4, 5))
    rows = jnp.reshape(rows, (batch, num_kv_heads, group, count * sizes.queries, width))
    return rows[..., :length, :]


def cut_keys(rows: Array, sizes: BlockSizes) -> Array:
    """Cut keys or values ``(B, K, S, X)`` into blocks ``(X, U, c, u, X)``, padded with zeros."""
    batch, num_kv_heads, length, width = rows.shape
    count = -(-length // sizes.keys)
    rows = jnp.pad(rows, [(0, 0)] * 2 + [(0, count * sizes.keys - length), (0, 0)])
    chunks = batch * num_kv_heads // sizes.heads
    rows = jnp.reshape(rows, (chunks, sizes.heads, count, sizes.keys, width))
    return jnp.swapaxes(rows, 1, 2)


def _even(length: int, target: int) -> int:
    """Return a size of blocks, ``target`` or a little less, that pads ``length`` the least."""
    size = -(-length // max(math.ceil(length / target), 1))
    return size if size <= 16 else -(-size // 16) * 16
