r"""Attention over blocks, forward and backward: what is kept is the log-sum-exp of each row.

Forward, the blocks of keys pass by a block of queries, see :mod:`~mha_book.online_softmax`.
Backward, $A^{ij} = e^{S^{ij} - \ell^i}$ is computed again, block by block, and with
$D^i = dO^{ic} O^{ic}$ and $dS^{ij} = A^{ij} (dO^{ic} V^{jc} - D^i + d\ell^i)$ come
$dV^{jc} = A^{ij} dO^{ic}$, $dK^{ja} = dS^{ij} Q^{ia}$ and $dQ^{ia} = dS^{ij} K^{ja}$: five products
for the two of the forward pass. Keys stand before queries there, $(u, r)$ in place of $(r, u)$:
then of the three products that sum over a block only one has to turn a block around.

Shapes: as in :mod:`~mha_book.blocks`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.block_mask import BlockMask, over_keys, visible_block
from mha_book.online_softmax import finish, nothing, update

__all__ = ["attention_over_blocks"]


def attention_over_blocks(
    query: Array, key: Array, value: Array, hidden: BlockMask
) -> tuple[Array, Array]:
    """Return the output ``(X, P, c, r, C)`` and the log-sum-exp ``(X, P, c, r)``.

    Args:
        query: ``(X, P, c, r, H)``, scaled, in the dtype in which to compute.
        key: ``(X, U, c, u, H)``; a block is widened when it is used.
        value: ``(X, U, c, u, C)``, likewise.
        hidden: which pairs are visible.

    Returns:
        The pair, in the dtype of the query.
    """
    return _attention(query, key, value, hidden)


@jax.custom_vjp
def _attention(query: Array, key: Array, value: Array, hidden: BlockMask) -> tuple[Array, Array]:
    chunks, count, heads, rows, _ = query.shape
    block = (rows, key.shape[-2])

    def of_chunk(x: Array) -> tuple[Array, Array]:
        def of_queries(p: Array) -> tuple[Array, Array]:
            q, place = query[x, p], (*_entry(hidden, chunks, x), p)

            def step(u: Array, known: Any, masked: bool) -> Any:
                scores = jnp.einsum("crh,cuh->cru", q, key[x, u].astype(q.dtype))
                if masked:
                    scores = jnp.where(visible_block(hidden, place, u, block), scores, -jnp.inf)
                return update(known, scores, value[x, u].astype(q.dtype))

            known = nothing((heads, rows, value.shape[-1]), q.dtype)
            return finish(over_keys(hidden, place, step, known))

        return jax.lax.map(of_queries, jnp.arange(count))

    return jax.lax.map(of_chunk, jnp.arange(chunks))


def _forward(query: Array, key: Array, value: Array, hidden: BlockMask) -> tuple[Any, Any]:
    output, lse = _attention(query, key, value, hidden)
    return (output, lse), (query, key, value, hidden, output, lse)


def _backward(saved: Any, cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array, None]:
    query, key, value, hidden, output, lse = saved
    d_output, d_lse = cotangents
    chunks, count = query.shape[:2]
    block = (query.shape[-2], key.shape[-2])
    # What dA is reduced by; in an empty row, where the log-sum-exp is -inf, its gradient may be
    # anything.
    inner = jnp.sum(output * d_output, axis=-1) - d_lse  # (X, P, c, r)
    inner = jnp.where(jnp.isneginf(lse), jnp.zeros((), inner.dtype), inner)

    def of_chunk(x: Array) -> tuple[Array, Array, Array]:
        def of_queries(sums: Any, p: Array) -> tuple[Any, Array]:
            q, d_o = query[x, p], d_output[x, p]  # (c, r, H), (c, r, C)
            place = (*_entry(hidden, chunks, x), p)
            row_lse, row_inner = lse[x, p][:, None], inner[x, p][:, None]  # (c, 1, r)

            def step(u: Array, sums: Any, masked: bool) -> Any:
                d_q, d_key, d_value = sums
                k, v = key[x, u].astype(q.dtype), value[x, u].astype(q.dtype)
                weights = jnp.exp(jnp.einsum("cuh,crh->cur", k, q) - row_lse)
                if masked:
                    visible = jnp.swapaxes(visible_block(hidden, place, u, block), -1, -2)
                    weights = jnp.where(visible, weights, jnp.zeros((), q.dtype))
                d_scores = weights * (jnp.einsum("cud,crd->cur", v, d_o) - row_inner)
                d_value = _add(d_value, u, jnp.einsum("cur,crd->cud", weights, d_o))
                d_key = _add(d_key, u, jnp.einsum("cur,crh->cuh", d_scores, q))
                d_q = d_q + jnp.einsum("cuh,cur->chr", k, d_scores)
                return d_q, d_key, d_value

            zero = jnp.zeros((q.shape[0], q.shape[2], q.shape[1]), q.dtype)
            d_q, *sums = over_keys(hidden, place, step, (zero, *sums))
            return tuple(sums), jnp.swapaxes(d_q, -1, -2)

        sums = tuple(jnp.zeros(array.shape[1:], query.dtype) for array in (key, value))
        sums, d_query = jax.lax.scan(of_queries, sums, jnp.arange(count))
        d_key, d_value = sums
        return d_query, d_key.astype(key.dtype), d_value.astype(value.dtype)

    return *jax.lax.map(of_chunk, jnp.arange(chunks)), None


_attention.defvjp(_forward, _backward)


def _entry(hidden: BlockMask, chunks: int, x: Array) -> tuple[Array, Array]:
    """Return the batch entry that a chunk belongs to, and its number there."""
    return jnp.divmod(x, chunks // hidden.start.shape[0])


def _add(sums: Array, u: Array, block: Array) -> Array:
    """Add a block to the one numbered ``u``, in place."""
    before = jax.lax.dynamic_index_in_dim(sums, u, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(sums, before + block, u, 0)
