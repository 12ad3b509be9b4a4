r"""JAX's own kernel of attention for TPUs, *splash attention*, behind the contract of this package.

The kernel keeps a tile of scores in the chip's fast memory and nothing of the size $T \times S$
anywhere, forward and backward. Which tiles a causal mask or a window hides is known before it is
compiled, and these are left out; lengths are given to it as the numbers of segments. Query heads of
a group read one key head, without copies.

Compiled by Mosaic where a program is lowered for a TPU, and interpreted anywhere else, slowly: that
is for tests. Not measured: no TPU was at hand.

Shapes: as in :mod:`~mha_book.attention.operands`; ``B`` batch entries; lengths are filled up to
whole tiles.

References:
    ``jax.experimental.pallas.ops.tpu.splash_attention``.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.attention.blocks import key_ranges, zero_outside
from mha_book.attention.blockwise import blockwise_attention
from mha_book.attention.derivatives import with_gradient_by_hand
from mha_book.attention.operands import Operands, empty_result
from mha_book.masks import Mask

__all__ = ["splash_attention", "tile_size", "why_unsupported"]

LANES = 128  # tiles are whole multiples of what a vector register has side by side
TILE = 512
WIDEST = 256  # of a head: wider tiles do not fit beside one another


def splash_attention(operands: Operands) -> tuple[Array, None]:
    """Attend with splash attention; the gradient of its log-sum-exp is missing, so it gives none.

    The kernel knows no scale: it is multiplied into the queries, which are rounded once more.
    Reverse mode is the kernel's own; forward mode and second derivatives are those of
    :func:`~mha_book.attention.blockwise.blockwise_attention`.

    Args:
        operands: the call, without bias and dropout multiplier; of a mask only bounds that are integers
            and lengths.

    Returns:
        ``(…, N, T, C)``, and None.
    """
    query = operands.query
    mask = Mask() if operands.mask is None else operands.mask
    *batch, num_heads, length, _ = query.shape
    key_length, value_dim = operands.value.shape[-2:]
    least, most = 1 - length, key_length - 1  # of j - i
    lower, upper = (d if b is None else b for b, d in ((mask.lower, least), (mask.upper, most)))
    if max(lower, least) > min(upper, most):  # a kernel of no tile at all cannot be made
        return empty_result(operands)[0], None
    rows = key_ranges(mask, tuple(batch), length, key_length)
    q, k, v = zero_outside(rows, operands)
    q = (q.astype(jnp.float32) * jnp.asarray(operands.scale, jnp.float32)).astype(q.dtype)
    q, k, v = (_filled(jnp.reshape(x, (math.prod(batch), *x.shape[-3:]))) for x in (q, k, v))
    lengths = mask.key_lengths
    if lengths is not None:
        lengths = jnp.reshape(lengths, (-1,)).astype(jnp.int32)
    elif k.shape[-2] > key_length:  # what was filled up is hidden
        lengths = jnp.full(q.shape[:1], key_length, jnp.int32)
    output = _differentiable(mask.lower, mask.upper)(q, k, v, lengths)[..., :length, :value_dim]
    output = jnp.reshape(output, (*batch, num_heads, length, value_dim))
    # A row that sees no key is zero, whatever the kernel made of it.
    sees = (rows.start < rows.stop)[..., None, :, None]
    return jnp.where(sees, output, jnp.zeros((), output.dtype)), None


def tile_size(length: int) -> int:
    """Return how many positions a tile has: a multiple of 128, at most 512, that fills up little.

    Args:
        length: of the sequence.

    Returns:
        The size; the length is filled up to a multiple of it.

    Example:
        >>> tile_size(2048), tile_size(700), tile_size(5)
        (512, 384, 128)
    """
    registers = -(-length // LANES)
    return -(-registers // -(-registers * LANES // TILE)) * LANES


def why_unsupported(spec: Any) -> str | None:
    """Return why splash attention cannot serve an attention spec, or None."""
    if spec.dtype not in ("float32", "bfloat16"):
        return f"it takes float32 and bfloat16, not {spec.dtype}"
    if "lse" in spec.wants:
        return "its log-sum-exp has no gradient"
    if spec.has_bias or "array" in spec.mask_kind:
        return "it takes no bias and no array of hidden pairs"
    if "segments" in spec.mask_kind:
        return "it reads no segments here"
    if "offsets" in spec.mask_kind:
        return "it has to know a causal offset or a window before it is compiled"
    if max(spec.query_shape[-1], spec.value_shape[-1]) > WIDEST:
        return f"it takes heads of a width up to {WIDEST}"
    if spec.is_partitioned:
        return "XLA cannot divide a kernel among devices; under jax.shard_map each runs its own"
    if spec.is_varying:
        return "JAX's kernel takes no part in what jax.shard_map checks; give that check_vma=False"
    return None


def _filled(x: Array) -> Array:
    """Fill up ``(B, N, T, H)`` with zeros: to whole tiles of rows, and to one number a row."""
    length, width = x.shape[-2:]
    rows, columns = -length % tile_size(length), int(width == 0)
    return jnp.pad(x, ((0, 0), (0, 0), (0, rows), (0, columns)))


def _differentiable(lower: int | None, upper: int | None) -> Any:
    """Return the function of query, key and value ``(B, N, T, H)`` and of key lengths ``(B,)``."""
    pullbacks: dict[bool, Any] = {}  # how what was kept is read, by whether it is interpreted
    shapes: list[Any] = []  # of the arguments

    def call(q: Array, k: Array, v: Array, lengths: Array | None, interpret: bool) -> Array:
        kernel = _kernel(q.shape[1], q.shape[2], k.shape[2], lower, upper, interpret)
        output: Array
        if lengths is None:
            output = jax.vmap(kernel)(q, k, v)
            return output

        def of_entry(q: Array, k: Array, v: Array, length: Array) -> Any:
            return kernel(q, k, v, _segments(q.shape[1], k.shape[1], length))

        output = jax.vmap(of_entry)(q, k, v, lengths)
        return output

    def alone(*arguments: Any) -> Array:
        output: Array = _compiled_on_tpu(call, *arguments)
        return output

    def keeping(
        q: Array, k: Array, v: Array, lengths: Array | None, interpret: bool
    ) -> tuple[Array, list[Array]]:
        output, pullback = jax.vjp(lambda q, k, v: call(q, k, v, lengths, interpret), q, k, v)
        leaves, tree = jax.tree.flatten(pullback)
        is_array = [isinstance(x, jax.Array) for x in leaves]
        fixed = [None if kept else x for x, kept in zip(leaves, is_array, strict=True)]
        pullbacks[interpret] = tree, is_array, fixed
        return output, [x for x, kept in zip(leaves, is_array, strict=True) if kept]

    def forward(*arguments: Any) -> tuple[Array, list[Array]]:
        shapes[:] = jax.tree.map(jax.typeof, arguments)
        result: tuple[Array, list[Array]] = _compiled_on_tpu(keeping, *arguments)
        return result

    def pull(kept: list[Array], d_output: Array, interpret: bool) -> tuple[Array, ...]:
        if interpret not in pullbacks:  # the forward pass ran on the platform that it was on
            jax.eval_shape(functools.partial(keeping, interpret=interpret), *shapes)
        tree, is_array, fixed = pullbacks[interpret]
        arrays = iter(kept)
        leaves = [next(arrays) if a else x for a, x in zip(is_array, fixed, strict=True)]
        gradients: tuple[Array, ...] = jax.tree.unflatten(tree, leaves)(d_output)
        return gradients

    def backward(kept: list[Array], d_output: Array) -> tuple[Any, ...]:
        return *_compiled_on_tpu(pull, kept, d_output), None

    def twin(q: Array, k: Array, v: Array, lengths: Array | None) -> Array:
        operands = Operands(q, k, v, Mask(lower, upper, lengths))
        return blockwise_attention(operands, platform="tpu")[0]

    return with_gradient_by_hand(forward, backward, twin, alone)


def _compiled_on_tpu(function: Any, *arguments: Any) -> Any:
    """Call a function that is told whether its kernel is to be interpreted."""
    return jax.lax.platform_dependent(
        *arguments,
        tpu=functools.partial(function, interpret=False),
        default=functools.partial(function, interpret=True),
    )


def _segments(query_length: int, key_length: int, length: Array) -> Any:
    """Say which keys are real: a query reads the keys of its own segment, 0."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    keys = jnp.arange(key_length, dtype=jnp.int32)
    return splash.SegmentIds(jnp.zeros(query_length, jnp.int32), (keys >= length).astype(jnp.int32))


@functools.lru_cache(maxsize=64)
def _kernel(
    num_heads: int,
    length: int,
    key_length: int,
    lower: int | None,
    upper: int | None,
    interpret: bool,
) -> Any:
    """Return the kernel for a mask that is known; it is imported only where it is needed."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = (length, key_length)
    mask: Any = masks.FullMask(shape)
    if lower is not None or upper is not None:
        mask = masks.LocalMask(shape, (None if lower is None else -lower, upper), offset=0)
    rows, keys = tile_size(length), tile_size(key_length)
    sizes = splash.BlockSizes(
        block_q=rows, block_kv=keys, block_kv_compute=keys,
        block_q_dkv=rows, block_kv_dkv=keys, block_kv_dkv_compute=keys,
        block_q_dq=rows, block_kv_dq=keys,
    )  # fmt: skip
    with jax.ensure_compile_time_eval():  # its tables are constants, whatever is being traced
        return splash.make_splash_mha(
            masks.MultiHeadMask([mask] * num_heads),
            block_sizes=sizes,
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
        )
