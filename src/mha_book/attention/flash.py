r"""Flash attention, forward, as a Pallas kernel in as few lines as a clear one needs.

One program runs for each head and each block of queries. It holds its queries in fast memory,
lets the keys and values pass by in blocks, and keeps of the scores what
:mod:`~mha_book.attention.online_softmax` keeps: nothing of the size $T \times S$ is ever stored.

Shapes: ``N`` heads, ``T`` queries, ``S`` keys, ``H`` width of queries and keys, ``C`` of values.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from mha_book._checks import check, check_flag, check_operands, check_size
from mha_book.attention.online_softmax import SoftmaxState, finalize, init, update

__all__ = ["flash_attention"]


def flash_attention(
    query: Float[Array, "N T H"],
    key: Float[Array, "N S H"],
    value: Float[Array, "N S C"],
    *,
    is_causal: bool = False,
    block: int = 64,
    interpret: bool = True,
) -> Float[Array, "N T C"]:
    r"""Return $\operatorname{softmax}(Q K^\top / \sqrt{d_k})\, V$ for every head.

    Args:
        query: ``(N, T, H)``, ``T`` a multiple of ``block``.
        key: ``(N, S, H)``, ``S`` a multiple of ``block``.
        value: ``(N, S, C)``.
        is_causal: whether query ``i`` may attend to keys ``j <= i`` only.
        block: queries and keys of a block.
        interpret: whether to run the kernel as ordinary JAX operations, on any device, rather
            than to compile it for an accelerator.

    Returns:
        ``(N, T, C)`` in the dtype of the inputs.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Dao et al., FlashAttention, 2022.

    Example:
        >>> x = jnp.ones((1, 8, 4))
        >>> flash_attention(x, x, x, block=4).shape
        (1, 8, 4)
    """
    check_operands(query, key, value)
    check(query.ndim == 3, "query", "axes (N, T, H), that is rank 3", f"rank {query.ndim}")
    check_size(block, "block")
    check_flag(is_causal, "is_causal")
    check_flag(interpret, "interpret")
    (heads, length, width), (key_heads, key_length, _) = query.shape, key.shape
    check(heads == key_heads, "key", f"{heads} heads, as query has", key.shape)
    for name, size in (("query", length), ("key", key_length)):
        check(size % block == 0, name, f"a length that is a multiple of block = {block}", size)
    if 0 in (heads, length, width, key_length, value.shape[-1]):  # as everywhere: zeros
        return jnp.zeros((heads, length, value.shape[-1]), query.dtype)
    of_queries = functools.partial(pl.BlockSpec, index_map=lambda n, p: (n, p, 0))
    of_keys = functools.partial(pl.BlockSpec, index_map=lambda n, p: (n, 0, 0))
    output: Array = pl.pallas_call(
        functools.partial(_kernel, is_causal=is_causal, block=block),
        grid=(heads, length // block),
        in_specs=[
            of_queries((None, block, width)),
            of_keys((None, key_length, width)),
            of_keys((None, key_length, value.shape[-1])),
        ],
        out_specs=of_queries((None, block, value.shape[-1])),
        out_shape=jax.ShapeDtypeStruct((heads, length, value.shape[-1]), query.dtype),
        interpret=interpret,
    )(query, key, value)
    return output


def _kernel(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, *, is_causal: bool, block: int) -> None:
    """Compute one block of queries of one head; the references are to memory, not yet read."""
    p = pl.program_id(1)
    q = q_ref[...].astype(jnp.float32) / math.sqrt(q_ref.shape[-1])  # (block, H)
    i = p * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 0)

    def step(u: Array, known: SoftmaxState) -> SoftmaxState:
        keys = pl.ds(u * block, block)
        scores = jnp.matmul(q, k_ref[keys, :].astype(jnp.float32).T)  # (block, block)
        if is_causal:
            j = u * block + jax.lax.broadcasted_iota(jnp.int32, (block, block), 1)
            scores = jnp.where(j <= i, scores, -jnp.inf)
        return update(known, scores, v_ref[keys, :].astype(jnp.float32))

    blocks = k_ref.shape[0] // block
    last = jnp.minimum(p + 1, blocks) if is_causal else blocks  # the rest is hidden
    known = jax.lax.fori_loop(0, last, step, init(o_ref.shape, jnp.float32))
    o_ref[...] = finalize(known)[0].astype(o_ref.dtype)
