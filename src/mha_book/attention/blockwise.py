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

Shapes: as in :mod:`~mha_book.attention.blocks`; ``H`` width of queries and keys, ``C`` of values.

References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Rabe and Staats,
    Self-attention does not need O(n²) memory, 2021; Dao, FlashAttention-2, 2023.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

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
from mha_book.attention.online_softmax import SoftmaxState, finalize, init, update
from mha_book.attention.operands import Operands, varying_axes, with_compiler_sharding
from mha_book.attention.reference import exponentials
from mha_book.masks import one_batch_axis

__all__ = [
    "attention_over_blocks",
    "blockwise_attention",
    "blockwise_gradients",
    "why_unsupported",
]


def blockwise_attention(
    operands: Operands, sizes: BlockSizes | None = None, platform: str = "cpu"
) -> tuple[Array, Array]:
    """Return output and log-sum-exp; half-precision blocks are widened to float32, one at a time.

    Args:
        operands: the call, without bias and dropout multiplier.
        sizes: how to cut; None for :func:`~mha_book.attention.blocks.block_sizes`.
        platform: which those sizes are for: "cpu", "gpu" or "tpu".

    Returns:
        ``(…, N, T, C)`` and ``(…, N, T)``.
    """
    by_blocks = functools.partial(_blockwise, sizes=sizes, platform=platform)
    return with_compiler_sharding(by_blocks, operands)


def _blockwise(operands: Operands, sizes: BlockSizes | None, platform: str) -> tuple[Array, Array]:
    query, value_dim = operands.query, operands.value.shape[-1]
    num_kv_heads = operands.key.shape[-3]
    *batch, num_heads, length, _ = query.shape
    shape = (math.prod(batch), num_kv_heads, num_heads // num_kv_heads, length)
    sizes = _sizes(operands, platform) if sizes is None else sizes
    output, lse = attention_over_blocks(*_cut_operands(operands, sizes), _cut_mask(operands, sizes))
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

    The backward pass on its own. It takes of the forward pass the output and the log-sum-exp alone,
    and these may be those of all keys where ``operands`` has some of them.

    Args:
        operands: the call, as in :func:`blockwise_attention`.
        output: ``(…, N, T, C)``, over all keys.
        lse: ``(…, N, T)``, over all keys.
        d_output: ``(…, N, T, C)``.
        d_lse: ``(…, N, T)``.
        sizes: as in :func:`blockwise_attention`.
        platform: likewise.

    Returns:
        The gradients of query, key and value, each in the dtype of its operand.
    """
    query, key = operands.query, operands.key
    *batch, num_heads, length, _ = query.shape
    sizes = _sizes(operands, platform) if sizes is None else sizes
    shape = (math.prod(batch), key.shape[-3], num_heads // key.shape[-3], length)

    def cut(rows: Array) -> Array:
        rows = jnp.reshape(rows.astype(accumulator_dtype(query.dtype)), (*shape, rows.shape[-1]))
        return split_queries(rows, sizes)

    def of_arrays(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
        return _cut_operands(operands._replace(query=query, key=key, value=value), sizes)

    blocks, merge = jax.vjp(of_arrays, *operands[:3])
    lse, d_lse = (cut(x[..., None])[..., 0] for x in (lse, d_lse))
    saved = (*blocks, _cut_mask(operands, sizes), cut(output), lse)
    *gradients, _ = _backward(saved, (cut(d_output), d_lse))
    found: tuple[Array, Array, Array] = merge(tuple(gradients))
    return found


def _sizes(operands: Operands, platform: str) -> BlockSizes:
    mask, (*batch, num_heads, length, _) = operands.mask, operands.query.shape
    num_kv_heads, key_length = operands.key.shape[-3:-1]
    moves = mask is not None and not mask.kinds.isdisjoint({"causal", "window", "band", "offsets"})
    return block_sizes(
        math.prod(batch), length, key_length, num_kv_heads, num_heads // num_kv_heads,
        position_dependent=moves, in_chunks=jax.device_count() == 1, platform=platform,
    )  # fmt: skip


def _ranges(operands: Operands) -> KeyRanges:
    query = operands.query
    return key_ranges(
        operands.mask, tuple(query.shape[:-3]), query.shape[-2], operands.key.shape[-2]
    )


def _cut_operands(operands: Operands, sizes: BlockSizes) -> tuple[Array, Array, Array]:
    """Empty what nothing attends to, scale the queries, and cut all three into blocks."""
    q, k, v = zero_outside(_ranges(operands), operands)
    *batch, num_heads, length, head_dim = q.shape
    num_kv_heads, dtype = k.shape[-3], accumulator_dtype(q.dtype)
    shape = (math.prod(batch), num_kv_heads, num_heads // num_kv_heads, length)
    q = jnp.reshape(q.astype(dtype) * jnp.asarray(operands.scale, dtype), (*shape, head_dim))
    k, v = (jnp.reshape(x, (shape[0], *x.shape[-3:])) for x in (k, v))
    return split_queries(q, sizes), split_keys(k, sizes), split_keys(v, sizes)


def _cut_mask(operands: Operands, sizes: BlockSizes) -> BlockMask:
    batch, mask = tuple(operands.query.shape[:-3]), operands.mask
    num_kv_heads, key_length = operands.key.shape[-3:-1]
    rows = KeyRanges(*(jnp.reshape(x, (-1, x.shape[-1])) for x in _ranges(operands)))
    array = one_batch_axis(None if mask is None else mask.array, batch)
    return split_mask(rows, array, num_kv_heads, key_length, sizes)


def why_unsupported(spec: Any) -> str | None:
    """Return why blocks cannot serve an attention spec, or None."""
    if spec.has_bias:
        return "a bias and its gradient are as large as the scores, which blocks are to avoid"
    if "segments" in spec.mask_kind:
        return "it reads no segments"
    return None


def attention_over_blocks(
    query: Array, key: Array, value: Array, mask: BlockMask
) -> tuple[Array, Array]:
    """Return the output ``(X, P, B, c, r, C)`` and the log-sum-exp ``(X, P, B, c, r)``.

    Args:
        query: ``(X, P, B, c, r, H)``, scaled, in the dtype in which to compute.
        key: ``(X, U, B, c, u, H)``; a block is widened when it is used.
        value: ``(X, U, B, c, u, C)``, likewise.
        mask: which pairs are visible.

    Returns:
        The pair, in the dtype of the query.
    """
    return _with_gradient(query, key, value, mask)


def _over_chunks(step: Callable[[Array], Any], chunks: int) -> Any:
    """Take chunks of heads one after another; a single one in no loop, whatever device has it."""
    if chunks == 1:
        return jax.tree.map(lambda x: x[None], step(jnp.zeros((), jnp.int32)))
    return jax.lax.map(step, jnp.arange(chunks))


def _attention(query: Array, key: Array, value: Array, mask: BlockMask) -> tuple[Array, Array]:
    chunks, count, *heads, rows, _ = query.shape  # heads: (B, c)
    block = (rows, key.shape[-2])

    def of_chunk(x: Array) -> tuple[Array, Array]:
        def of_queries(p: Array) -> tuple[Array, Array]:
            q = query[x, p]  # (B, c, r, H)

            def step(u: Array, known: SoftmaxState, masked: bool) -> SoftmaxState:
                scores = jnp.einsum("bcrh,bcuh->bcru", q, key[x, u].astype(q.dtype))
                if masked:
                    scores = jnp.where(visible_block(mask, (x, p, u), block), scores, -jnp.inf)
                return update(known, scores, value[x, u].astype(q.dtype))

            known = _varying(init((*heads, rows, value.shape[-1]), q.dtype), q, value[x, 0])
            return finalize(loop_over_keys(mask, p, step, known))

        return jax.lax.map(of_queries, jnp.arange(count))

    return _over_chunks(of_chunk, chunks)


def _forward(query: Array, key: Array, value: Array, mask: BlockMask) -> tuple[Any, Any]:
    output, lse = _attention(query, key, value, mask)
    return (output, lse), (query, key, value, mask, output, lse)


def _backward(saved: Any, cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array, None]:
    query, key, value, mask, output, lse = saved
    d_output, d_lse = cotangents
    chunks, count = query.shape[:2]
    block = (query.shape[-2], key.shape[-2])
    # What dA is reduced by; in an empty row, where the log-sum-exp is -inf, its gradient may be
    # anything.
    inner = jnp.sum(output * d_output, axis=-1) - d_lse  # (X, P, B, c, r)
    inner = jnp.where(jnp.isneginf(lse), jnp.zeros((), inner.dtype), inner)

    def of_chunk(x: Array) -> tuple[Array, Array, Array]:
        def of_queries(sums: Any, p: Array) -> tuple[Any, Array]:
            q, d_o = query[x, p], d_output[x, p]  # (B, c, r, H), (B, c, r, C)
            row_lse, row_inner = lse[x, p][..., None, :], inner[x, p][..., None, :]  # (B, c, 1, r)

            def step(u: Array, sums: Any, masked: bool) -> Any:
                d_q, d_key, d_value = sums
                k, v = key[x, u].astype(q.dtype), value[x, u].astype(q.dtype)
                weights = jnp.exp(jnp.einsum("bcuh,bcrh->bcur", k, q) - row_lse)
                if masked:
                    visible = jnp.swapaxes(visible_block(mask, (x, p, u), block), -1, -2)
                    weights = jnp.where(visible, weights, jnp.zeros((), q.dtype))
                d_scores = weights * (jnp.einsum("bcud,bcrd->bcur", v, d_o) - row_inner)
                d_value = _add(d_value, u, jnp.einsum("bcur,bcrd->bcud", weights, d_o))
                d_key = _add(d_key, u, jnp.einsum("bcur,bcrh->bcuh", d_scores, q))
                d_q = d_q + jnp.einsum("bcuh,bcur->bchr", k, d_scores)
                return d_q, d_key, d_value

            zero = _varying(jnp.zeros((*q.shape[:2], q.shape[3], q.shape[2]), q.dtype), q, d_o)
            d_q, *sums = loop_over_keys(mask, p, step, (zero, *sums))
            return tuple(sums), jnp.swapaxes(d_q, -1, -2)

        sums = tuple(
            _varying(jnp.zeros(array.shape[1:], query.dtype), array[x], query[x, 0])
            for array in (key, value)
        )
        sums, d_query = jax.lax.scan(of_queries, sums, jnp.arange(count))
        d_key, d_value = sums
        return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)

    return *_over_chunks(of_chunk, chunks), None


def _twin(query: Array, key: Array, value: Array, mask: BlockMask) -> tuple[Array, Array]:
    """Compute the same with all scores at once, in operations that JAX differentiates twice."""
    chunks, count, *_, rows, _ = query.shape
    places = (jnp.arange(n, dtype=jnp.int32) for n in (chunks, count, key.shape[1]))
    of_place = functools.partial(_visible, mask, (rows, key.shape[-2]))
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        of_place = jax.vmap(of_place, axes)
    visible = jnp.moveaxis(of_place(*places), 2, -2)  # (X, P, B, c, r, U, u)
    k, v = key.astype(query.dtype), value.astype(query.dtype)
    scores = jnp.einsum("xpbcrh,xvbcuh->xpbcrvu", query, k)
    numerators, total, lse = exponentials(
        *(jnp.reshape(x, (*x.shape[:-2], -1)) for x in (scores, visible))
    )
    v = jnp.reshape(jnp.moveaxis(v, 1, 3), (*v.shape[:1], *v.shape[2:4], -1, v.shape[-1]))
    return jnp.einsum("xpbcrs,xbcsd->xpbcrd", numerators, v) / total, lse


def _visible(mask: BlockMask, shape: tuple[int, int], x: Array, p: Array, u: Array) -> Array:
    return visible_block(mask, (x, p, u), shape)


_with_gradient = with_gradient_by_hand(_forward, _backward, _twin)


def _add(sums: Array, u: Array, block: Array) -> Array:
    """Add a block to the one numbered ``u``, in place."""
    before = jax.lax.dynamic_index_in_dim(sums, u, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(sums, before + block, u, 0)


def _varying(state: Any, *like: Array) -> Any:
    """Say, under ``shard_map``, that a loop's first state differs by device where ``like`` does."""
    axes = frozenset[str]().union(*map(varying_axes, like))

    def cast(x: Array) -> Array:
        missing = tuple(sorted(axes - varying_axes(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, state)
