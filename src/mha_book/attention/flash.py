r"""Flash attention, forward, as a Pallas kernel in as few lines as a clear one needs.

The kernel runs once for each head, each block of queries and each block of keys. Its queries stay
in fast memory while the keys and values pass by in blocks, one run after the other, and of the
scores it keeps there what :mod:`~mha_book.attention.online_softmax` keeps: nothing of the size
$T \times S$ is ever stored. It is compiled for TPUs by Mosaic, and interpreted anywhere else.

Shapes: ``N`` heads, ``T`` queries, ``S`` keys, ``H`` width of queries and keys, ``C`` of values.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from mha_book._checks import check, check_flag, check_operands, check_size
from mha_book.attention.online_softmax import SoftmaxState, finalize, init, update
from mha_book.attention.platform import platform_of

__all__ = ["flash_attention"]


def flash_attention(
    query: Float[Array, "N T H"],
    key: Float[Array, "N S H"],
    value: Float[Array, "N S C"],
    *,
    is_causal: bool = False,
    block: int = 128,
    interpret: bool | None = None,
) -> Float[Array, "N T C"]:
    r"""Return $\operatorname{softmax}(Q K^\top / \sqrt{d_k})\, V$ for every head.

    Args:
        query: ``(N, T, H)``, ``T`` a multiple of ``block``.
        key: ``(N, S, H)``, ``S`` a multiple of ``block``.
        value: ``(N, S, C)``.
        is_causal: whether query ``i`` may attend to keys ``j <= i`` only.
        block: queries and keys of a block. On a TPU a multiple of 128.
        interpret: whether to run the kernel as ordinary JAX operations, on any device, rather
            than to compile it. None compiles it where a program is traced for a TPU, see
            :func:`~mha_book.attention.platform.target_platform`.

    Returns:
        ``(N, T, C)`` in the dtype of the inputs.

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
    if interpret is None:
        interpret = platform_of(query, key, value)[0] != "tpu"
    check_flag(interpret, "interpret")
    (heads, length, width), (key_heads, key_length, _) = query.shape, key.shape
    check(heads == key_heads, "key", f"{heads} heads, as query has", key.shape)
    for name, size in (("query", length), ("key", key_length)):
        check(size % block == 0, name, f"a length that is a multiple of block = {block}", size)
    if not width:  # every score is zero; a tile has to hold something
        query, key = (jnp.zeros((*x.shape[:-1], 1), x.dtype) for x in (query, key))
    if 0 in (heads, length, key_length, value.shape[-1]):  # as everywhere: zeros
        return jnp.zeros((heads, length, value.shape[-1]), query.dtype)
    of_queries = functools.partial(pl.BlockSpec, index_map=lambda n, p, u: (n, p, 0))
    of_keys = functools.partial(
        pl.BlockSpec, index_map=lambda n, p, u: (n, jnp.minimum(p, u) if is_causal else u, 0)
    )
    output: Array = pl.pallas_call(
        functools.partial(_kernel, is_causal=is_causal),
        grid=(heads, length // block, key_length // block),
        in_specs=[
            of_queries((None, block, query.shape[-1])),
            of_keys((None, block, query.shape[-1])),
            of_keys((None, block, value.shape[-1])),
        ],
        out_specs=of_queries((None, block, value.shape[-1])),
        out_shape=jax.ShapeDtypeStruct((heads, length, value.shape[-1]), query.dtype),
        scratch_shapes=[pltpu.VMEM((block, n), jnp.float32) for n in (1, 1, value.shape[-1])],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        name="flash_attention",
        interpret=interpret,
    )(query, key, value)
    return output


def _kernel(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any, *state: Any, is_causal: bool) -> None:
    """Let one block of keys pass by one block of queries; references are to memory."""
    p, u = pl.program_id(1), pl.program_id(2)
    last = jnp.minimum(p, pl.num_programs(2) - 1) if is_causal else pl.num_programs(2) - 1

    def store(known: SoftmaxState) -> None:
        for reference, array in zip(state, known, strict=True):
            reference[...] = array

    def load() -> SoftmaxState:
        return SoftmaxState(*(reference[...] for reference in state))

    @pl.when(u == 0)
    def _() -> None:
        store(init(o_ref.shape, jnp.float32))

    @pl.when(u <= last)  # the rest is hidden
    def _() -> None:
        q = q_ref[...].astype(jnp.float32) / math.sqrt(q_ref.shape[-1])  # (block, H)
        scores = jnp.matmul(q, k_ref[...].astype(jnp.float32).T)  # (block, block)
        if is_causal:
            i, j = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
            block = len(scores)
            scores = jnp.where(u * block + j <= p * block + i, scores, -jnp.inf)
        store(update(load(), scores, v_ref[...].astype(jnp.float32)))

    @pl.when(u == last)
    def _() -> None:
        o_ref[...] = finalize(load())[0].astype(o_ref.dtype)
