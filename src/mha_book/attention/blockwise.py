r"""Attention by blocks: the scores of a few hundred queries and keys at a time, memory linear in T.

Forward, the blocks of keys pass by a block of queries: a row of the softmax is computed while its
keys pass, as in :mod:`~mha_book.attention.online_softmax`. Blocks that a structured mask hides are
left out, and only blocks at its edge are masked.

Backward, what was kept is the log-sum-exp $\lambda^i$ of each row. Block by block,
$A^{ij} = e^{S^{ij} - \lambda^i}$ is computed again, and with $r^i = dO^{ic} O^{ic}$ and
$dS^{ij} = A^{ij} (dO^{ic} V^{jc} - r^i + d\lambda^i)$ come
$dV^{jc} = A^{ij} dO^{ic}$, $dK^{ja} = dS^{ij} Q^{ia}$ and $dQ^{ia} = dS^{ij} K^{ja}$: five products
for the two of the forward pass. Keys stand before queries there, $(u, r)$ in place of $(r, u)$:
then of the three products that sum over a block only one has to turn a block around.

The rounding of $r^i$ would enter $dQ^{ia}$ times the sum of the keys. Since
$\sum_j dS^{ij} = d\lambda^i$, what all keys have in common, their mean $\bar K^a$, need not pass
through the product: $dQ^{ia} = dS^{ij} (K^{ja} - \bar K^a) + d\lambda^i \bar K^a$. For keys between
1 and 2 the error is then a fraction of what $r^i = \sum_j A^{ij} dA^{ij}$ would leave, which costs
two more products.

Shapes: as in :mod:`~mha_book.attention.blocks`; ``H`` width of queries and keys, ``C`` of values.

References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Rabe and Staats,
    Self-attention does not need O(n²) memory, 2021; Dao, FlashAttention-2, 2023.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book._checks import accumulator_dtype
from mha_book.attention.blocks import (
    BlockMask,
    BlockSizes,
    KeyRanges,
    block_sizes,
    key_ranges,
    loop_over_keys,
    merge_queries,
    split_keys,
    split_mask,
    split_queries,
    visible_block,
    zero_outside,
)
from mha_book.attention.derivatives import with_gradient_by_hand
from mha_book.attention.online_softmax import SoftmaxState, empty_state, finalized, updated
from mha_book.attention.operands import LogitSoftcap, Operands, varying_axes, with_compiler_sharding
from mha_book.attention.reference import exponentials
from mha_book.masks import one_batch_axis

__all__: list[str] = []

Result = TypeVar("Result")


class Blocks(NamedTuple):
    """One call of attention, cut into blocks."""

    query: Array  # (X, P, B, c, r, H), scaled, in the dtype in which to compute
    key: Array  # (X, U, B, c, u, H); a block is widened when it is used
    value: Array  # (X, U, B, c, u, C), likewise
    mask: BlockMask  # which pairs are visible
    softcap: LogitSoftcap | None  # what bounds the scores, or None


def blockwise_attention(
    operands: Operands, sizes: BlockSizes | None = None, platform: str = "cpu"
) -> tuple[Array, Array]:
    """Return output and log-sum-exp; half-precision blocks are widened to float32, one at a time.

    There is no bias and no dropout multiplier. ``platform`` is "cpu", or any accelerator.
    """
    by_blocks = functools.partial(_blockwise, sizes=sizes, platform=platform)
    return with_compiler_sharding(by_blocks, operands)


def _blockwise(operands: Operands, sizes: BlockSizes | None, platform: str) -> tuple[Array, Array]:
    query, value_dim = operands.query, operands.value.shape[-1]
    *batch, num_heads, length, _ = query.shape
    shape = _grouped(operands)
    sizes = _sizes(operands, shape, platform) if sizes is None else sizes
    output, lse = _with_gradient(_cut(operands, shape, sizes))
    output = merge_queries(output, (*shape, value_dim), sizes).astype(query.dtype)
    lse = merge_queries(lse[..., None], (*shape, 1), sizes)
    heads = (*batch, num_heads, length)
    return jnp.reshape(output, (*heads, value_dim)), jnp.reshape(lse, heads)


def blockwise_gradients(
    operands: Operands,
    output: Array,
    lse: Array,
    d_output: Array,
    d_lse: Array,
    sizes: BlockSizes | None = None,
    platform: str = "cpu",
) -> tuple[Array, Array, Array]:
    r"""Return what these keys add to the gradients of attention over these and perhaps others.

    The backward pass on its own. It takes of the forward pass the output ``(…, N, T, C)`` and the
    log-sum-exp ``(…, N, T)`` alone, and these may be those of all keys where ``operands`` has some.
    """
    dtype, shape = accumulator_dtype(operands.query.dtype), _grouped(operands)
    sizes = _sizes(operands, shape, platform) if sizes is None else sizes

    def rows(x: Array) -> Array:
        return split_queries(jnp.reshape(x.astype(dtype), (*shape, x.shape[-1])), sizes)

    def of_arrays(query: Array, key: Array, value: Array) -> tuple[Any, Any]:
        blocks = _cut(operands._replace(query=query, key=key, value=value), shape, sizes)
        return blocks[:3], blocks[3:]

    arrays, merge, rest = jax.vjp(of_arrays, *operands[:3], has_aux=True)
    lse, d_lse = (rows(x[..., None])[..., 0] for x in (lse, d_lse))
    saved = Blocks(*arrays, *rest), rows(output), lse
    gradients = _block_gradients(saved, (rows(d_output), d_lse), is_part=True)
    found: tuple[Array, Array, Array] = merge(gradients)
    return found


def _grouped(operands: Operands) -> tuple[int, int, int, int]:
    """Return ``(B, K, G, T)``."""
    *batch, num_heads, length, _ = operands.query.shape
    num_kv_heads = operands.key.shape[-3]
    return math.prod(batch), num_kv_heads, num_heads // num_kv_heads, length


def _sizes(operands: Operands, shape: tuple[int, int, int, int], platform: str) -> BlockSizes:
    mask, (batch, num_kv_heads, group, length) = operands.mask, shape
    moving = {"causal", "window", "band", "offsets", "segments"}
    return block_sizes(
        batch, length, operands.key.shape[-2], num_kv_heads, group,
        position_dependent=mask is not None and not mask.kinds.isdisjoint(moving),
        in_chunks=jax.device_count() == 1, platform=platform,
    )  # fmt: skip


def _cut(operands: Operands, shape: tuple[int, int, int, int], sizes: BlockSizes) -> Blocks:
    """Empty what nothing attends to, scale the queries, and cut everything into blocks."""
    mask, batch = operands.mask, tuple(operands.query.shape[:-3])
    ranges = key_ranges(mask, batch, operands.query.shape[-2], operands.key.shape[-2])
    q, k, v = zero_outside(ranges, operands)
    dtype = accumulator_dtype(q.dtype)
    q = jnp.reshape(q.astype(dtype) * jnp.asarray(operands.scale, dtype), (*shape, q.shape[-1]))
    k, v = (jnp.reshape(x, (shape[0], *x.shape[-3:])) for x in (k, v))
    rows = KeyRanges(*(x.reshape(-1, x.shape[-1]) for x in ranges))
    array = one_batch_axis(None if mask is None else mask.array, batch)
    segments = None
    if mask is not None and mask.query_segments is not None:
        ids = (jnp.asarray(x) for x in (mask.query_segments, mask.key_segments))
        of_queries, of_keys = (jnp.reshape(x, (-1, x.shape[-1])) for x in ids)
        segments = of_queries, of_keys
    blocks = split_mask(rows, array, k.shape[1], k.shape[2], sizes, segments)
    keys, values = (split_keys(x, sizes) for x in (k, v))
    return Blocks(split_queries(q, sizes), keys, values, blocks, operands.softcap)


def why_unsupported(spec: Any) -> str | None:
    """Return why blocks cannot serve an attention spec, or None."""
    if spec.has_bias:
        return "a bias and its gradient are as large as the scores, which blocks are to avoid"
    return None


def _over_chunks(step: Callable[[Array], Result], chunks: int) -> Result:
    """Take chunks of heads one after another; a single one in no loop, whatever device has it."""
    found: Result
    if chunks == 1:
        found = jax.tree.map(lambda x: x[None], step(jnp.zeros((), jnp.int32)))
    else:
        found = jax.lax.map(step, jnp.arange(chunks, dtype=jnp.int32))
    return found


def _attention(blocks: Blocks) -> tuple[Array, Array]:
    """Return the output ``(X, P, B, c, r, C)`` and the log-sum-exp ``(X, P, B, c, r)``."""
    query, key, value, mask, softcap = blocks
    chunks, count, *heads, rows, _ = query.shape  # heads: (B, c)
    block = (rows, key.shape[-2])

    def of_chunk(x: Array) -> tuple[Array, Array]:
        def of_queries(p: Array) -> tuple[Array, Array]:
            q = _block(query, x, p)  # (B, c, r, H)

            def step(u: Array, known: SoftmaxState, masked: bool) -> SoftmaxState:
                k, v = (_block(a, x, u).astype(q.dtype) for a in (key, value))
                scores = _product(q, k, 3, 3)
                scores = scores if softcap is None else softcap(scores)
                if masked:
                    scores = jnp.where(visible_block(mask, (x, p, u), block), scores, -jnp.inf)
                return updated(known, scores, v)

            known = empty_state((*heads, rows, value.shape[-1]), q.dtype)
            known = _varying(known, q, value)
            return finalized(loop_over_keys(mask, p, step, known))

        found: tuple[Array, Array] = jax.lax.map(of_queries, jnp.arange(count, dtype=jnp.int32))
        return found

    return _over_chunks(of_chunk, chunks)


def _forward(blocks: Blocks) -> tuple[Any, Any]:
    output, lse = _attention(blocks)
    return (output, lse), (blocks, output, lse)


def _backward(saved: Any, cotangents: tuple[Array, Array]) -> tuple[Blocks]:
    return (Blocks(*_block_gradients(saved, cotangents), None, None),)  # type: ignore[arg-type]


def _block_gradients(
    saved: tuple[Blocks, Array, Array], cotangents: tuple[Array, Array], is_part: bool = False
) -> tuple[Array, Array, Array]:
    """Return the gradients of the blocks of queries, keys and values.

    ``is_part``: whether output and log-sum-exp are those of more keys than the call has.
    """
    (query, key, value, mask, softcap), output, lse = saved
    d_output, d_lse = cotangents
    chunks, count = query.shape[:2]
    block = (query.shape[-2], key.shape[-2])
    # What dA is reduced by; in an empty row, where the log-sum-exp is -inf, its gradient may be
    # anything.
    empty, zero = jnp.isneginf(lse), jnp.zeros((), query.dtype)
    d_lse = jnp.where(empty, zero, d_lse)
    inner = jnp.where(empty, zero, jnp.sum(output * d_output, axis=-1)) - d_lse  # (X, P, B, c, r)
    # The rows of dS sum to dλ, whatever is rounded in r: so what all keys have in common is left
    # out of the product with them, and the rounding with it. A part of the keys has no such sum.
    center = None
    if not is_part and softcap is None:
        center = jnp.sum(key.astype(query.dtype) / (key.shape[1] * key.shape[-2]), axis=(1, -2))

    def of_chunk(x: Array) -> tuple[Array, Array, Array]:
        mean = None if center is None else _block(center, x)[..., None, :]  # (B, c, 1, H)

        def of_queries(sums: Any, p: Array) -> tuple[Any, Array]:
            q, d_o = _block(query, x, p), _block(d_output, x, p)  # (B, c, r, H), (B, c, r, C)
            row_lse, row_inner = (_block(a, x, p)[..., None, :] for a in (lse, inner))

            def step(u: Array, sums: Any, masked: bool) -> Any:
                d_q, d_key, d_value = sums
                k, v = (_block(a, x, u).astype(q.dtype) for a in (key, value))
                scores = _product(k, q, 3, 3)  # (B, c, u, r)
                capped = scores if softcap is None else softcap(scores)
                weights = jnp.exp(capped - row_lse)
                if masked:
                    visible = jnp.swapaxes(visible_block(mask, (x, p, u), block), -1, -2)
                    weights = jnp.where(visible, weights, zero)
                d_scores = weights * (_product(v, d_o, 3, 3) - row_inner)
                if softcap is not None:
                    d_scores = d_scores * softcap.slope(capped)
                d_value = _add(d_value, u, _product(weights, d_o, 3, 2))
                d_key = _add(d_key, u, _product(d_scores, q, 3, 2))
                d_q = d_q + _product(k if mean is None else k - mean, d_scores, 2, 2)
                return d_q, d_key, d_value

            start = jnp.zeros((*q.shape[:2], q.shape[3], q.shape[2]), q.dtype)
            start = _varying(start, q, d_o, key)
            d_q, *sums = loop_over_keys(mask, p, step, (start, *sums))
            d_q = jnp.swapaxes(d_q, -1, -2)
            if mean is not None:
                d_q = d_q + _block(d_lse, x, p)[..., None] * mean
            return tuple(sums), d_q

        sums = tuple(
            _varying(jnp.zeros(array.shape[1:], query.dtype), array, query, d_output)
            for array in (key, value)
        )
        sums, d_query = jax.lax.scan(of_queries, sums, jnp.arange(count, dtype=jnp.int32))
        d_key, d_value = sums
        return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)

    return _over_chunks(of_chunk, chunks)


def _reference(blocks: Blocks) -> tuple[Array, Array]:
    """Compute the same with all scores at once, in operations that JAX differentiates twice."""
    query, key, value, mask, softcap = blocks
    chunks, count, *_, rows, _ = query.shape
    places = (jnp.arange(n, dtype=jnp.int32) for n in (chunks, count, key.shape[1]))
    of_place = functools.partial(_visible, mask, (rows, key.shape[-2]))
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        of_place = jax.vmap(of_place, axes)
    visible = jnp.moveaxis(of_place(*places), 2, -2)  # (X, P, B, c, r, U, u)
    k, v = key.astype(query.dtype), value.astype(query.dtype)
    scores = jnp.einsum("xpbcrh,xvbcuh->xpbcrvu", query, k)
    scores = scores if softcap is None else softcap(scores)
    numerators, total, lse = exponentials(
        *(jnp.reshape(x, (*x.shape[:-2], -1)) for x in (scores, visible))
    )
    v = jnp.reshape(jnp.moveaxis(v, 1, 3), (*v.shape[:1], *v.shape[2:4], -1, v.shape[-1]))
    return jnp.einsum("xpbcrs,xbcsd->xpbcrd", numerators, v) / total, lse


def _visible(mask: BlockMask, shape: tuple[int, int], x: Array, p: Array, u: Array) -> Array:
    return visible_block(mask, (x, p, u), shape)


_with_gradient = with_gradient_by_hand(_forward, _backward, _reference)


def _block(x: Array, *place: Array) -> Array:
    """Return the block at a place of the first axes."""
    for number in place:
        x = jax.lax.dynamic_index_in_dim(x, number, keepdims=False)
    return x


def _product(x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """Return the products of ``(B, c, …)`` matrices, summed over one axis of each."""
    return jax.lax.dot_general(x, y, (((of_x,), (of_y,)), ((0, 1), (0, 1))))


def _add(sums: Array, u: Array, block: Array) -> Array:
    """Add a block to the one numbered ``u``, in place."""
    before = jax.lax.dynamic_index_in_dim(sums, u, keepdims=False)
    added: Array = jax.lax.dynamic_update_index_in_dim(sums, before + block, u, 0)
    return added


def _varying(state: Any, *like: Array) -> Any:
    """Say, under ``shard_map``, that a loop's first state differs by device where ``like`` does."""
    axes = frozenset[str]().union(*map(varying_axes, like))
    if not axes:
        return state

    def cast(x: Array) -> Array:
        missing = tuple(sorted(axes - varying_axes(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, state)
