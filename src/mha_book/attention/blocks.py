r"""Cutting attention into blocks: which keys each query may see, and which blocks that needs.

A mask without an array shows query $i$ the keys $j$ with $a_i \le j < b_i$: :class:`KeyRanges`,
O(T) numbers. Both ends grow with $i$, so that any run of queries sees one run of keys too; from
these ends follow which blocks of keys a block of queries needs, and which of them it sees whole
(:class:`BlockMask`).

Shapes: ``B`` batch entries, ``X`` chunks of ``c`` key/value heads each, ``P`` blocks of queries,
``U`` blocks of keys, ``r`` rows of a block of queries (those of all heads of a group), ``u`` keys
of a block of keys.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from mha_book.attention.operands import Operands
from mha_book.masks import Mask, zero_unattended

__all__: list[str] = []

State = TypeVar("State")
_Array = Array | np.ndarray  # of NumPy where it is known while a call is traced


class KeyRanges(NamedTuple):
    """The keys of each query: ``start <= j < stop``; both are 0 where it sees none."""

    start: Int[_Array, "*batch T"]  # (*batch, T), the first key
    stop: Int[_Array, "*batch T"]  # (*batch, T), one more than the last


def key_ranges(
    mask: Mask | None, batch: tuple[int, ...], query_length: int, key_length: int
) -> KeyRanges:
    """Return the interval of keys that each query may see; the mask's array is not looked at.

    ``mask`` is what :func:`~mha_book.masks.as_mask` gave, ``batch`` the batch axes of the operands.
    """
    mask = Mask() if mask is None else mask
    arrays = mask.lower, mask.upper, mask.key_lengths, mask.query_lengths
    is_known = all(x is None or isinstance(x, int) for x in arrays)
    xp: Any = np if is_known else jnp  # what is known is computed once, while a call is traced
    i = xp.reshape(xp.arange(query_length, dtype=xp.int32), (1,) * len(batch) + (query_length,))

    def by_row(field: Any) -> Any:
        field = xp.asarray(field, xp.int32)
        return xp.reshape(field, field.shape or (1,) * len(batch))[..., None]

    start = xp.zeros_like(i)
    stop = start + key_length
    if mask.lower is not None:
        start = xp.maximum(start, i + by_row(mask.lower))
    if mask.upper is not None:
        stop = xp.minimum(stop, i + by_row(mask.upper) + 1)
    if mask.key_lengths is not None:
        stop = xp.minimum(stop, by_row(mask.key_lengths))
    sees = start < stop
    if mask.query_lengths is not None:
        sees = xp.logical_and(sees, i < by_row(mask.query_lengths))
    return KeyRanges(xp.where(sees, start, 0), xp.where(sees, stop, 0))


def attended_keys(rows: KeyRanges, key_length: int) -> Bool[_Array, "*batch S"]:
    """Return which keys some query sees; the ends of the intervals grow with the row."""
    xp = _library(rows)
    sees = rows.start < rows.stop
    first = xp.min(xp.where(sees, rows.start, key_length), axis=-1, keepdims=True)
    last = xp.max(rows.stop, axis=-1, keepdims=True)
    j = np.arange(key_length, dtype=np.int32)[(None,) * (first.ndim - 1)]
    found: Bool[_Array, "*batch S"] = xp.logical_and(first <= j, j < last)
    return found


def _library(rows: KeyRanges) -> Any:
    """Return NumPy where the ranges are known while a call is traced, ``jax.numpy`` elsewhere."""
    return np if isinstance(rows.start, np.ndarray) else jnp


ROWS, KEYS = 512, 512  # of a block; measured on CPUs (benchmarks/)
ROWS_LEVEL = 2048  # of queries that all see the same keys: nothing is lost at an edge then
SCORES = 2**20  # scores held at a time by a core of a CPU: 4 MiB in float32, about its cache
# By an accelerator: 16 MiB, of 128 MiB of VMEM on a TPU v5e or v6e, of 50 MB of L2 on an H100.
ACCELERATOR_SCORES = 2**22
FEWEST = 128  # rows of a block, however many heads share a step


def zero_outside(rows: KeyRanges, operands: Operands) -> tuple[Array, Array, Array]:
    """Empty what nothing attends to, as :func:`~mha_book.masks.zero_unattended` does.

    Unless the mask has an array or segments, no array of pairs is made.
    """
    query, key, value, mask, *_ = operands
    if mask is None:
        return query, key, value
    if mask.array is not None or mask.query_segments is not None:
        return zero_unattended(query, key, value, operands.visible())
    sees, is_attended = rows.start < rows.stop, attended_keys(rows, key.shape[-2])

    if isinstance(sees, np.ndarray) and sees.all() and is_attended.all():
        return query, key, value

    def keep(x: Array, where: Any) -> Array:  # (…, N, T, H), (…, T)
        return jnp.where(where[..., None, :, None], x, jnp.zeros((), x.dtype))

    return keep(query, sees), keep(key, is_attended), keep(value, is_attended)


class BlockSizes(NamedTuple):
    """How the operands are cut."""

    queries: int  # positions of a block of queries
    keys: int  # positions of a block of keys
    heads: int  # key/value heads worked on together, a divisor of K


def block_sizes(
    batch: int,
    query_length: int,
    key_length: int,
    num_kv_heads: int,
    group: int,
    *,
    position_dependent: bool,
    in_chunks: bool = True,
    platform: str = "cpu",
) -> BlockSizes:
    """Return sizes of blocks that pad little and whose scores stay in fast memory.

    Where all queries see the same keys a block has more rows. Where the keys move with the query
    (``position_dependent``), as under a causal mask, the scores that a block computes in vain grow
    with its rows. A core of a CPU takes a few heads after the others (``in_chunks``); where heads
    may lie on several devices, all of them have to be taken at once. An accelerator takes the whole
    batch and all heads at once, since its units would stand idle, and blocks of queries of one
    size, since more rows are no faster there once all heads share a step.

    Example:
        >>> block_sizes(1, 2048, 2048, 8, 1, position_dependent=True)
        BlockSizes(queries=512, keys=512, heads=4)
        >>> block_sizes(1, 2048, 2048, 8, 1, position_dependent=False)
        BlockSizes(queries=2048, keys=512, heads=1)
        >>> block_sizes(1, 2048, 2048, 8, 1, position_dependent=True, platform="tpu")
        BlockSizes(queries=512, keys=512, heads=8)
    """
    is_cpu = platform == "cpu"
    in_chunks, most = in_chunks and is_cpu, SCORES if is_cpu else ACCELERATOR_SCORES
    keys = _even(key_length, KEYS)
    together = batch * group * (1 if in_chunks else num_kv_heads)  # heads that share a step
    rows = (ROWS if position_dependent or not is_cpu else ROWS_LEVEL) // group
    fewest = min(FEWEST, rows)
    queries = _even(query_length, max(min(rows, most // (together * keys)), fewest, 1))
    if not in_chunks:
        return BlockSizes(queries, keys, num_kv_heads)
    fits = [c for c in range(1, num_kv_heads + 1) if c * together * queries * keys <= most]
    heads = max((c for c in fits if num_kv_heads % c == 0), default=1)
    return BlockSizes(queries, keys, heads)


def split_queries(rows: Array, sizes: BlockSizes) -> Array:
    """Cut rows of queries, ``(B, K, G, T, H)``, into blocks ``(X, P, B, c, r, H)``."""
    batch, num_kv_heads, group, length, width = rows.shape
    count = -(-length // sizes.queries)
    rows = jnp.pad(rows, [(0, 0)] * 3 + [(0, count * sizes.queries - length), (0, 0)])
    chunks = num_kv_heads // sizes.heads
    rows = jnp.reshape(rows, (batch, chunks, sizes.heads, group, count, sizes.queries, width))
    rows = jnp.transpose(rows, (1, 4, 0, 2, 3, 5, 6))
    return jnp.reshape(rows, (chunks, count, batch, sizes.heads, group * sizes.queries, width))


def merge_queries(blocks: Array, shape: tuple[int, ...], sizes: BlockSizes) -> Array:
    """Undo :func:`split_queries`; ``shape`` is ``(B, K, G, T, H)``."""
    chunks, count, batch, heads, _, width = blocks.shape
    _, num_kv_heads, group, length, _ = shape
    blocks = jnp.reshape(blocks, (chunks, count, batch, heads, group, sizes.queries, width))
    rows = jnp.transpose(blocks, (2, 0, 3, 4, 1, 5, 6))
    rows = jnp.reshape(rows, (batch, num_kv_heads, group, count * sizes.queries, width))
    return rows[..., :length, :]


def split_keys(rows: Array, sizes: BlockSizes) -> Array:
    """Cut keys or values ``(B, K, S, H)`` into blocks ``(X, U, B, c, u, H)``, padded with zeros."""
    batch, num_kv_heads, length, width = rows.shape
    count = -(-length // sizes.keys)
    rows = jnp.pad(rows, [(0, 0)] * 2 + [(0, count * sizes.keys - length), (0, 0)])
    chunks = num_kv_heads // sizes.heads
    rows = jnp.reshape(rows, (batch, chunks, sizes.heads, count, sizes.keys, width))
    return jnp.transpose(rows, (1, 3, 0, 2, 4, 5))


def _even(length: int, target: int) -> int:
    """Return a size of blocks, ``target`` or a little less, that pads ``length`` the least."""
    size = -(-length // max(math.ceil(length / target), 1))
    return size if size <= 16 else -(-size // 16) * 16


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BlockKinds:
    """Which kinds of block of keys there may be, as far as it is known while a call is traced."""

    whole: bool = True  # blocks that some block of queries sees whole
    edge: bool = True  # blocks of which it sees a part


class BlockMask(NamedTuple):
    """Which pairs are visible, by blocks.

    Block ``p`` of the queries needs the key blocks ``first[p] .. last[p] - 1``; of these it sees
    ``whole_first[p] .. whole_last[p] - 1`` whole, where no score has to be masked: in every entry
    of the batch.
    """

    start: Array  # (P, B, queries), the first key of each query; B may be 1
    stop: Array  # (P, B, queries), one more than its last; likewise
    bounds: Array  # (P, 4): first, whole_first, whole_last, last
    array: Array | None = None  # boolean (X, P, U, B, c, G, queries, keys), each axis whole or 1
    segments: tuple[Array, Array] | None = None  # (P, B, queries), and of the keys (U, B, keys)
    kinds: BlockKinds = BlockKinds()  # which kinds of block there are


def split_mask(
    rows: KeyRanges,
    array: Array | None,
    num_kv_heads: int,
    key_length: int,
    sizes: BlockSizes,
    segments: tuple[Array, Array] | None = None,
) -> BlockMask:
    """Cut what hides keys as :func:`split_queries` and :func:`split_keys` cut the operands.

    The ranges are ``(B, T)``, the array ``(B, N, T, S)``, each axis whole or 1, and the segments
    ``(B, T)`` and ``(B, S)``.
    """
    if segments is not None:
        rows = _within_segments(rows, segments)
    xp, length = _library(rows), rows.start.shape[1]
    count, key_count = -(-length // sizes.queries), -(-key_length // sizes.keys)

    def by_block(x: Any, count: int, size: int, xp: Any = xp) -> Any:
        x = xp.pad(x, ((0, 0), (0, count * size - x.shape[1])))
        return xp.swapaxes(xp.reshape(x, (x.shape[0], count, size)), 0, 1)

    start, stop = (by_block(x, count, sizes.queries) for x in rows)
    sees, others = start < stop, (1, 2)
    first = xp.min(xp.where(sees, start, key_length), axis=others) // sizes.keys
    last = -(-xp.max(stop, axis=others) // sizes.keys)
    first = xp.minimum(first, last)  # a block whose queries see nothing needs no key
    whole_first = xp.clip(-(-xp.max(start, axis=others) // sizes.keys), first, last)
    whole_last = xp.clip(xp.min(stop, axis=others) // sizes.keys, whole_first, last)
    if array is not None or segments is not None:
        whole_last = whole_first  # any pair may be hidden
    if array is not None:
        array = _split_array(array, (count, key_count), num_kv_heads, sizes)
    if segments is not None:
        cuts = (count, sizes.queries), (key_count, sizes.keys)
        queries, keys = (by_block(x, *c, jnp) for x, c in zip(segments, cuts, strict=True))
        segments = queries, keys
    bounds = xp.stack([first, whole_first, whole_last, last], axis=-1).astype(xp.int32)
    kinds = BlockKinds()
    if xp is np:
        some_whole = bool((whole_first < whole_last).any())
        kinds = BlockKinds(some_whole, bool((last - first > whole_last - whole_first).any()))
    elif array is not None or segments is not None:
        kinds = BlockKinds(whole=False)
    start, stop, bounds = (jnp.asarray(x) for x in (start, stop, bounds))
    return BlockMask(start, stop, bounds, array, segments, kinds)


def _within_segments(rows: KeyRanges, segments: tuple[Array, Array]) -> KeyRanges:
    """Narrow the ranges to the keys from the first to the last of each query's segment."""
    queries, keys = segments
    key_length = keys.shape[-1]
    j = jnp.arange(key_length, dtype=jnp.int32)
    same = queries[:, :, None] == keys[:, None, :]  # a compiler joins it with what it is for
    start = jnp.maximum(rows.start, jnp.min(jnp.where(same, j, key_length), axis=-1))
    stop = jnp.minimum(rows.stop, jnp.max(jnp.where(same, j + 1, 0), axis=-1))
    sees = start < stop
    return KeyRanges(jnp.where(sees, start, 0), jnp.where(sees, stop, 0))


def _split_array(
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
    split = jnp.reshape(jnp.pad(array, padding), shape)  # (B, X, c, G, P, queries, U, keys)
    return jnp.transpose(split, (1, 4, 6, 0, 2, 3, 5, 7))


def loop_over_keys(
    mask: BlockMask, p: Array, step: Callable[[Array, State, bool], State], state: State
) -> State:
    """Take one step for each block of keys that block ``p`` of the queries needs.

    ``step`` goes from the number of the block of keys, the state and whether some pair in the block
    may be hidden to the next state.
    """
    first, whole_first, whole_last, last = mask.bounds[p]
    before = whole_first - first

    def edge(n: Array, state: State) -> State:
        return step(jnp.where(n < before, first + n, whole_last + n - before), state, True)

    if mask.kinds.whole:
        state = jax.lax.fori_loop(
            whole_first, whole_last, lambda u, state: step(u, state, False), state
        )
    if mask.kinds.edge:
        state = jax.lax.fori_loop(0, before + last - whole_last, edge, state)
    return state


def visible_block(
    mask: BlockMask, place: tuple[Array, Array, Array], shape: tuple[int, int]
) -> Array:
    """Return which keys of a block the queries of a block see, ``shape`` ``(r, u)``.

    ``place`` has the numbers of the chunk of heads, of the block of queries and of that of keys.
    """
    _, p, u = place
    start, stop = mask.start[p][:, None, None, :, None], mask.stop[p][:, None, None, :, None]
    j = u * shape[1] + jnp.arange(shape[1], dtype=jnp.int32)
    j = jnp.reshape(j, (1, 1, 1, 1, -1))
    visible = jnp.logical_and(start <= j, j < stop)  # (B, 1, 1, queries, u)
    if mask.segments is not None:
        of_queries, of_keys = mask.segments[0][p], mask.segments[1][u]
        same = of_queries[:, :, None] == of_keys[:, None, :]
        visible = jnp.logical_and(visible, same[:, None, None])
    if mask.array is not None:
        block = mask.array
        for number in place:
            block = block[jnp.where(block.shape[0] == 1, 0, number)]
        visible = jnp.logical_and(visible, block)  # (B, c, G, queries, u)
    batch, heads, _, queries, keys = visible.shape
    visible = jnp.broadcast_to(visible, (batch, heads, shape[0] // queries, queries, keys))
    return jnp.reshape(visible, (batch, heads, *shape))
