r"""Attention by blocks: the scores of a few hundred queries and keys at a time, memory linear in T.

A row of the softmax is computed while its keys pass by: with the largest score $m$ so far, the
sum $\ell$ of $\exp(S - m)$ and the output $o$ not yet divided by it, a new block of keys gives

$m' = \max(m, \max_j S_j)$, $\ell' = e^{m - m'} \ell + \sum_j e^{S_j - m'}$ and
$o' = e^{m - m'} o + \sum_j e^{S_j - m'} V_j$.

Blocks that a structured mask hides are left out, and only blocks at its edge are masked. The
backward pass is in :mod:`~mha_book.blockwise_vjp`.

Shapes: as in :mod:`~mha_book.blocks`; ``H`` width of queries and keys, ``C`` of values.

References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Rabe and Staats,
    Self-attention does not need O(n²) memory, 2021; Dao, FlashAttention-2, 2023.
"""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from mha_book._dtypes import wide
from mha_book.block_mask import cut_mask
from mha_book.blocks import BlockSizes, block_sizes, cut_keys, cut_queries, join
from mha_book.blockwise_vjp import attention_over_blocks
from mha_book.heads import heads_first
from mha_book.masks import Mask
from mha_book.spans import Spans, seen, spans
from mha_book.visibility import one_batch_axis, silence, visibility

__all__ = ["refuse", "run"]


def run(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Any,
    layout: str,
    return_lse: bool,
    sizes: BlockSizes | None = None,
) -> Any:
    """Serve :func:`mha_book.dispatch.attend` by blocks.

    Half-precision blocks are widened to float32, one at a time.
    """
    del bias  # dispatch refuses it
    q, k, v = (heads_first(x, layout) for x in (query, key, value))
    dtype, (*batch, num_heads, length, head_dim) = wide(q.dtype), q.shape
    num_kv_heads, key_length = k.shape[-3:-1]
    shape = (math.prod(batch), num_kv_heads, num_heads // num_kv_heads, length)
    slanted = mask is not None and not mask.parts.isdisjoint({"causal", "band"})
    sizes = sizes or block_sizes(length, key_length, num_kv_heads, shape[2], slanted=slanted)
    rows = spans(mask, tuple(batch), length, key_length)
    q, k, v = _silence(q, k, v, mask, rows)
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    q = jnp.reshape(q.astype(dtype) * jnp.asarray(scale, dtype), (*shape, head_dim))
    k, v = (jnp.reshape(x, (shape[0], *x.shape[-3:])) for x in (k, v))
    rows = Spans(*(jnp.reshape(x, (shape[0], length)) for x in rows))
    array = one_batch_axis(None if mask is None else mask.array, tuple(batch))
    hidden = cut_mask(rows, array, num_kv_heads, key_length, sizes)
    output, lse = attention_over_blocks(
        cut_queries(q, sizes), cut_keys(k, sizes), cut_keys(v, sizes), hidden
    )
    output = join(output, (*shape, v.shape[-1]), sizes).astype(query.dtype)
    output = heads_first(jnp.reshape(output, (*batch, num_heads, length, -1)), layout)
    if not return_lse:
        return output
    lse = join(lse[..., None], (*shape, 1), sizes)
    return output, jnp.reshape(lse, (*batch, num_heads, length))


def refuse(request: Any) -> str | None:
    """Return why blocks cannot serve a :class:`~mha_book.request.Request`, or None."""
    if request.has_bias:
        return "a bias and its gradient are as large as the scores, which blocks are to avoid"
    return None


def _silence(
    query: Array, key: Array, value: Array, mask: Mask | None, rows: Spans
) -> tuple[Array, Array, Array]:
    """Empty what nothing attends to; unless the mask has an array, without an array of pairs."""
    if mask is None:
        return query, key, value
    if mask.array is not None:
        return silence(query, key, value, visibility(query, key, mask=mask))
    sees, is_seen = rows.start < rows.stop, seen(rows, key.shape[-2])

    def keep(x: Array, alive: Array) -> Array:  # (…, N, T, X), (…, T)
        return jnp.where(alive[..., None, :, None], x, jnp.zeros((), x.dtype))

    return keep(query, sees), keep(key, is_seen), keep(value, is_seen)
