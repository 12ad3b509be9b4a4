"""``jax.nn.dot_product_attention`` behind the contract of this package: by XLA and by cuDNN.

cuDNN's flash attention serves half precision on NVIDIA GPUs and never holds the scores. Causal
masks, windows and lengths are given to it as such.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.attention.blocks import key_ranges, zero_outside
from mha_book.attention.operands import Operands
from mha_book.masks import one_batch_axis, zero_unattended

__all__: list[str] = []


def xla_attention(operands: Operands) -> tuple[Array, None]:
    """Attend with the XLA form of ``jax.nn``; it returns no log-sum-exp.

    Two things are added to keep the contract: operands that nothing attends to are emptied
    before, and the output of an empty row is set to zero after; ``jax.nn`` gives it the mean of
    the values.
    """
    q, k, v, mask, bias, scale, *_ = operands
    batch = q.shape[:-3]
    # A causal mask hides no query, and no key unless keys outnumber queries: nothing to empty.
    is_causal = mask is not None and mask.kinds == {"causal"}
    plain_causal = is_causal and bias is None and k.shape[-2] <= q.shape[-2]
    visible = None if plain_causal else operands.visible()
    if visible is not None:
        q, k, v = zero_unattended(q, k, v, visible)
        bias = None if bias is None else jnp.where(visible, bias, jnp.zeros((), bias.dtype))
    output = dot_product_attention(
        q, k, v, mask=one_batch_axis(visible, batch), bias=one_batch_axis(bias, batch),
        scale=scale, is_causal=plain_causal, implementation="xla",
    )  # fmt: skip
    if visible is not None:
        is_attended = jnp.any(visible, axis=-1)[..., None]  # (…, N, T, 1), each axis equal or 1
        output = jnp.where(is_attended, output, jnp.zeros((), output.dtype))
    return output, None


def cudnn_attention(operands: Operands) -> tuple[Array, None]:
    """Attend with cuDNN; it returns no log-sum-exp.

    Lengths and a window travel as such, never as an array of pairs. Keys after the last query,
    which a causal mask hides, are left out. A ``scale`` that is an array is multiplied into the
    queries, since cuDNN wants a number; these are rounded once more.

    There is no bias, and no mask but causal, a window before the query's own position, and lengths.
    """
    query, mask, scale = operands.query, operands.mask, operands.scale
    *batch, _, length, _ = query.shape
    rows = key_ranges(mask, tuple(batch), length, operands.key.shape[-2])
    q, k, v = zero_outside(rows, operands)
    of_queries, of_keys = (None, None) if mask is None else (mask.query_lengths, mask.key_lengths)
    is_causal = mask is not None and mask.upper is not None
    options: dict[str, Any] = {"is_causal": is_causal}
    if is_causal:
        k, v = k[..., :length, :], v[..., :length, :]
    if mask is not None and mask.lower is not None:
        options["local_window_size"] = (-mask.lower, 0)
    most = {"query_seq_lengths": length, "key_value_seq_lengths": k.shape[-2]}
    is_odd = any(size % 2 for size in most.values())
    for (name, size), lengths in zip(most.items(), (of_queries, of_keys), strict=True):
        if lengths is not None:
            flat = jnp.reshape(lengths, (-1,)).astype(jnp.int32)
            options[name] = jnp.minimum(flat, size)
        elif is_odd:
            options[name] = jnp.full((math.prod(batch),), size, jnp.int32)
    q, k, v = (_padded_to_even(x) for x in (q, k, v))
    if not isinstance(scale, (int, float)):
        q, scale = (q.astype(jnp.float32) * scale).astype(q.dtype), 1.0
    output = dot_product_attention(q, k, v, scale=scale, implementation="cudnn", **options)
    output = output[..., :length, :]
    if mask is not None:  # a row that sees no key is zero, whatever was made of it
        sees = (rows.start < rows.stop)[..., None, :, None]
        output = jnp.where(sees, output, jnp.zeros((), output.dtype))
    return output, None


def _padded_to_even(x: Array) -> Array:
    """Add one empty position to an odd number: the gradient of JAX's call refuses these."""
    odd = x.shape[-2] % 2
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, 1), (0, 0)]) if odd else x


def dot_product_attention(query: Array, key: Array, value: Array, **options: Any) -> Array:
    """Call ``jax.nn.dot_product_attention`` on arrays with the heads first, of any batch axes.

    A mask and a bias among the ``options`` have one batch axis.
    """

    def positions_first(x: Array) -> Array:
        x = jnp.swapaxes(x, -3, -2)  # XLA cancels a double exchange
        return jnp.reshape(x, (-1, *x.shape[-3:]))

    operands = (positions_first(x) for x in (query, key, value))
    with jax.numpy_dtype_promotion("standard"):  # its code promotes; so does its gradient
        output = jax.nn.dot_product_attention(*operands, **options)
    output = jnp.reshape(output, (*query.shape[:-3], *output.shape[1:]))
    return jnp.swapaxes(output, -3, -2)


def why_xla_unsupported(spec: Any) -> str | None:
    """Return why XLA's form cannot serve an attention spec, or None."""
    if spec.has_softcap:
        return "it knows no soft cap of the scores"
    if "lse" in spec.wants and spec.dtype != "float32":
        return "its log-sum-exp comes in the dtype of the output, not in float32"
    if "lse" in spec.wants:
        return "its log-sum-exp has no gradient"
    if spec.dtype == "float64":
        return "it computes the softmax of float64 scores in float32"
    if spec.dtype == "float16" and spec.platform != "gpu":
        return f"its float16 products do not compile on {spec.platform}"
    if spec.value_shape[-1] != spec.key_shape[-1]:
        return "it takes no value width other than the key width"
    return None


def why_cudnn_unsupported(spec: Any) -> str | None:
    """Return why cuDNN cannot serve an attention spec, or None."""
    width, generation = spec.query_shape[-1], spec.compute_capability
    if spec.platform != "gpu" or generation is None or generation < (8, 0):
        return "it needs an NVIDIA GPU of compute capability 8.0 or more"
    if spec.dtype not in ("bfloat16", "float16"):
        return f"it takes half precision, not {spec.dtype}"
    if spec.value_shape[-1] != width:
        return "it takes no value width other than the key width on every GPU"
    widest = 256 if generation >= (9, 0) else 128
    if width % 8 or width > widest:
        return f"it takes a head width that is a multiple of 8 up to {widest}, not {width}"
    if "lse" in spec.wants:
        return "its log-sum-exp comes in the dtype of the output, not in float32"
    if spec.has_softcap:
        return "it knows no soft cap of the scores"
    if spec.has_bias or spec.mask_kind & {"array", "segments"}:
        return "it is slow with a bias, segments or an array of hidden pairs"
    if spec.mask_kind & {"band", "offsets"}:
        return "it takes a window before the query's own position alone, and knows no offset"
    return None
