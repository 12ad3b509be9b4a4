r"""JAX's own kernel of attention for TPUs, *splash attention*, behind the contract of this package.

The kernel keeps a tile of scores in the chip's fast memory and nothing of the size $T \times S$
anywhere, forward and backward. Which tiles a causal mask or a window hides is known before it is
compiled, and these are left out; lengths are given to it as the numbers of segments. Query heads of
a group read one key head, without copies.

Compiled by Mosaic where a program is traced for a TPU, and interpreted anywhere else, slowly: that
is for tests. Not measured: no TPU was at hand.

Shapes: as in :mod:`~mha_book.attention.operands`; ``B`` batch entries; lengths are filled up to
whole tiles.

References:
    ``jax.experimental.pallas.ops.tpu.splash_attention``.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.attention.blocks import key_ranges, zero_outside
from mha_book.attention.blockwise import blockwise_attention
from mha_book.attention.derivatives import with_gradient_by_hand
from mha_book.attention.operands import LogitSoftcap, Operands, empty_result
from mha_book.masks import Mask

__all__: list[str] = []

LANES = 128  # tiles are whole multiples of what a vector register has side by side
TILE = 512
WIDEST = 256  # of a head: wider tiles do not fit beside one another


def splash_attention(operands: Operands, platform: str = "cpu") -> tuple[Array, None]:
    """Attend with splash attention; the gradient of its log-sum-exp is missing, so it gives none.

    The kernel knows no scale: it is multiplied into the queries, which are rounded once more.
    Reverse mode is the kernel's own; forward mode and second derivatives are those of
    :func:`~mha_book.attention.blockwise.blockwise_attention`.

    There is no bias and no dropout multiplier, and the mask has bounds that are integers, lengths
    and segments alone. For a platform other than "tpu" the kernel is interpreted.
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
    function = _differentiable(mask.lower, mask.upper, operands.softcap, platform != "tpu")
    output = function(q, k, v, _segments(mask, q, k, length, key_length))
    output = jnp.reshape(output[..., :length, :value_dim], (*batch, num_heads, length, value_dim))
    # A row that sees no key is zero, whatever the kernel made of it.
    sees = (rows.start < rows.stop)[..., None, :, None]
    if mask.query_segments is not None:
        sees = jnp.any(mask.materialize(length, key_length), axis=-1)[..., None]
    return jnp.where(sees, output, jnp.zeros((), output.dtype)), None


def tile_size(length: int) -> int:
    """Return the positions of a tile: a multiple of 128, at most 512, that fills up little."""
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


def _segments(
    mask: Mask, query: Array, key: Array, length: int, key_length: int
) -> tuple[Array, Array] | None:
    """Return the segments of the queries ``(B, T)`` and keys ``(B, S)``; hidden keys have others.

    A query reads the keys of its own segment: lengths are two segments, of real keys and the rest.
    """
    (batch, _, rows, _), keys = query.shape, key.shape[-2]
    if mask.query_segments is None and mask.key_lengths is None and keys == key_length:
        return None
    of_queries, of_keys = (jnp.zeros((1, n), jnp.int32) for n in (length, key_length))
    if mask.query_segments is not None:
        given = (jnp.asarray(x) for x in (mask.query_segments, mask.key_segments))
        of_queries, of_keys = (jnp.reshape(x, (-1, x.shape[-1])) for x in given)
        if of_keys.dtype.itemsize > 4:  # the kernel takes 32 bits: the first key that has the id
            first = [
                jnp.argmax(x[..., None] == of_keys[:, None], -1) for x in (of_queries, of_keys)
            ]
            none = ~jnp.any(of_queries[..., None] == of_keys[:, None], axis=-1)
            of_queries, of_keys = jnp.where(none, key_length, first[0]), first[1]
        of_queries, of_keys = (x.astype(jnp.int32) for x in (of_queries, of_keys))
    real = jnp.full((1,), key_length) if mask.key_lengths is None else mask.key_lengths
    is_real = jnp.arange(keys, dtype=jnp.int32)[None] < jnp.reshape(real, (-1, 1)).astype(jnp.int32)
    of_queries = jnp.pad(of_queries, ((0, 0), (0, rows - length)))
    of_keys = jnp.pad(of_keys, ((0, 0), (0, keys - key_length)))
    of_keys = jnp.where(is_real, of_keys, jnp.max(of_queries) + 1)
    return jnp.broadcast_to(of_queries, (batch, rows)), jnp.broadcast_to(of_keys, (batch, keys))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Pullback:
    """What JAX's pullback of the kernel is made of besides arrays; for the same shapes, the same.

    Args:
        shapes: of the operands.
        tree: the structure of the pullback.
        others: its leaves that are no arrays, and None in place of each array.
    """

    shapes: Any
    tree: Any = dataclasses.field(compare=False)
    others: Any = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=64)
def _differentiable(
    lower: int | None, upper: int | None, softcap: LogitSoftcap | None, interpret: bool
) -> Any:
    """Return the function of query, key and value ``(B, N, T, H)`` and of the segments."""
    cap = None if softcap is None else softcap.cap

    def call(q: Array, k: Array, v: Array, segments: Any) -> Array:
        kernel = _kernel(q.shape[1], q.shape[2], k.shape[2], lower, upper, cap, interpret)
        output: Array
        if segments is None:
            output = jax.vmap(kernel)(q, k, v)
        else:
            output = jax.vmap(kernel)(q, k, v, _as_segment_ids(*segments))
        return output

    def forward(q: Array, k: Array, v: Array, segments: Any) -> tuple[Array, Any]:
        output, pullback = jax.vjp(lambda q, k, v: call(q, k, v, segments), q, k, v)
        leaves, tree = jax.tree.flatten(pullback)
        others = [None if isinstance(x, jax.Array) else x for x in leaves]
        arrays = [x for x in leaves if isinstance(x, jax.Array)]
        shapes = tuple((x.shape, str(x.dtype)) for x in (q, k, v)), segments is None
        return output, (arrays, _Pullback(shapes, tree, others))

    def backward(kept: Any, d_output: Array) -> tuple[Any, ...]:
        arrays, pullback = iter(kept[0]), kept[1]
        leaves = [next(arrays) if x is None else x for x in pullback.others]
        return *jax.tree.unflatten(pullback.tree, leaves)(d_output), None

    def reference(q: Array, k: Array, v: Array, segments: Any) -> Array:
        queries, keys = (None, None) if segments is None else segments
        mask = Mask(lower, upper, query_segments=queries, key_segments=keys)
        return blockwise_attention(Operands(q, k, v, mask, softcap=softcap), platform="tpu")[0]

    return with_gradient_by_hand(forward, backward, reference, call)


def _as_segment_ids(queries: Array, keys: Array) -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash

    return splash.SegmentIds(queries, keys)


@functools.lru_cache(maxsize=64)
def _kernel(
    num_heads: int,
    length: int,
    key_length: int,
    lower: int | None,
    upper: int | None,
    softcap: float | None,
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
            attn_logits_soft_cap=softcap,
            interpret=interpret,
        )
