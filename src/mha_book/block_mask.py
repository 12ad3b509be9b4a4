"""What hides keys, by blocks: which block of queries needs which block of keys.

Shapes: as in :mod:`~mha_book.blocks`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.blocks import BlockSizes
from mha_book.spans import Spans

__all__ = ["BlockMask", "cut_mask", "over_keys", "visible_block"]


class BlockMask(NamedTuple):
    """Which pairs are visible, by blocks.

    Block ``p`` of the queries needs the key blocks ``first[p] .. last[p] - 1``; of these it sees
    ``whole_first[p] .. whole_last[p] - 1`` whole, where no score has to be masked.

    Args:
        start: ``(B, P, queries)``, the first key of each query.
        stop: ``(B, P, queries)``, one more than its last.
        bounds: ``(B, P, 4)``: first, whole_first, whole_last, last.
        array: boolean ``(B, X/B, c, G, P, queries, U, keys)``, each axis whole or 1; or None.
    """

    start: Array
    stop: Array
    bounds: Array
    array: Array | None


def cut_mask(
    rows: Spans, array: Array | None, num_kv_heads: int, key_length: int, sizes: BlockSizes
) -> BlockMask:
    """Cut what hides keys as :func:`cut_queries` and :func:`cut_keys` cut the operands.

    Args:
        rows: the keys of each query, ``(B, T)``.
        array: the array of the mask, ``(B, N, T, S)``, each axis whole or 1; or None.
        num_kv_heads: ``K``.
        key_length: ``S``.
        sizes: how to cut.

    Returns:
        The mask by blocks.
    """
    batch, length = rows.start.shape
    count, key_count = -(-length // sizes.queries), -(-key_length // sizes.keys)
    padding = [(0, 0), (0, count * sizes.queries - length)]
    start, stop = (jnp.reshape(jnp.pad(x, padding), (batch, count, sizes.queries)) for x in rows)
    sees = start < stop
    first = jnp.min(jnp.where(sees, start, key_length), axis=-1) // sizes.keys
    last = -(-jnp.max(stop, axis=-1) // sizes.keys)
    first = jnp.minimum(first, last)  # a block whose queries see nothing needs no key
    whole_first = jnp.clip(-(-jnp.max(start, axis=-1) // sizes.keys), first, last)
    whole_last = jnp.clip(jnp.min(stop, axis=-1) // sizes.keys, whole_first, last)
    if array is not None:
        whole_last = whole_first  # the array may hide any pair
        array = _cut_array(array, (count, key_count), num_kv_heads, sizes)
    bounds = jnp.stack([first, whole_first, whole_last, last], axis=-1)
    return BlockMask(start, stop, bounds, array)


def _cut_array(
    array: Array, counts: tuple[int, int], num_kv_heads: int, sizes: BlockSizes
) -> Array:
    """Pad and split the axes of a boolean array; axes of length 1 stay 1."""
    batch, num_heads, length, key_length = array.shape
    heads, chunk = sizes.heads, (1, 1, 1)
    if num_heads != 1:
        chunk = (num_kv_heads // heads, heads, num_heads // num_kv_heads)
    shape, padding = [batch, *chunk], [(0, 0), (0, 0)]
    for size, count, block in zip(
        (length, key_length), counts, (sizes.queries, sizes.keys), strict=True
    ):
        whole = size != 1 or count * block == 1
        shape += [count, block] if whole else [1, 1]
        padding.append((0, count * block - size if whole else 0))
    return jnp.reshape(jnp.pad(array, padding), shape)


def over_keys(
    hidden: BlockMask, place: tuple[Array, Array, Array], step: Callable[..., Any], state: Any
) -> Any:
    """Take one step for each block of keys that a block of queries needs.

    Args:
        hidden: the mask by blocks.
        place: the numbers of the batch entry, of the chunk of heads and of the block of queries.
        step: ``(u, state, masked)`` to the next state: the number of the block of keys, and
            whether some pair in it may be hidden. It is traced twice, as the body of two loops.
        state: the state before the first step.

    Returns:
        The state after the last.
    """
    entry, _, p = place
    first, whole_first, whole_last, last = hidden.bounds[entry, p]
    before = whole_first - first

    def edge(n: Array, state: Any) -> Any:
        return step(jnp.where(n < before, first + n, whole_last + n - before), state, True)

    if hidden.array is None:
        state = jax.lax.fori_loop(
            whole_first, whole_last, lambda u, state: step(u, state, False), state
        )
    return jax.lax.fori_loop(0, before + last - whole_last, edge, state)


def visible_block(
    hidden: BlockMask, place: tuple[Array, Array, Array], u: Array, shape: tuple[int, int]
) -> Array:
    """Return which keys of a block the queries of a block see.

    Args:
        hidden: the mask by blocks.
        place: as in :func:`over_keys`.
        u: the number of the block of keys.
        shape: ``(r, keys)``.

    Returns:
        Boolean ``(c, r, keys)``, or 1 in place of ``c`` where all heads see the same.
    """
    entry, chunk, p = place
    start, stop = hidden.start[entry, p][:, None], hidden.stop[entry, p][:, None]  # (queries, 1)
    j = (u * shape[1] + jnp.arange(shape[1], dtype=jnp.int32))[None, :]
    visible = jnp.logical_and(start <= j, j < stop)[None, None]  # (1, 1, queries, keys)
    if hidden.array is not None:
        block = hidden.array
        for axis, number in ((6, u), (4, p), (1, chunk), (0, entry)):
            number = jnp.where(block.shape[axis] == 1, 0, number)
            block = jax.lax.dynamic_index_in_dim(block, number, axis, keepdims=False)
        visible = jnp.logical_and(visible, block)  # (c, G, queries, keys), or 1 for c and G
    heads, _, queries, keys = visible.shape
    visible = jnp.broadcast_to(visible, (heads, shape[0] // queries, queries, keys))
    return jnp.reshape(visible, (heads, *shape))
