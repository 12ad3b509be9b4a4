"""``jax.nn.dot_product_attention`` (its XLA form) behind the contract of this package."""

# MERGED-DOC """cuDNN's flash attention, through ``jax.nn``, behind the contract of this package.
#
# For half precision on NVIDIA GPUs; it never holds the scores. It is given what it is known to do
# right: no mask, or the causal one. Not measured: no such device was at hand.
# """

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.heads import heads_first
from mha_book.masks import Mask, one_batch_axis, visibility, zero_unattended

__all__ = ["call", "why_unsupported", "why_cudnn_unsupported", "run", "run_cudnn"]


def run(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Any,
    layout: str,
    return_lse: bool,
) -> Array:
    """Serve :func:`mha_book.attention.dispatch.attend` with ``jax.nn``, which wants ``(B, T, N, H)``.

    Two things are added to keep the contract: operands that nothing attends to are emptied
    before, and the output of an empty row is set to zero after; ``jax.nn`` gives it the mean of
    the values.
    """
    del return_lse  # dispatch refuses it: it would come in the dtype of the output
    batch = query.shape[:-3]
    q, k, v = (heads_first(x, layout) for x in (query, key, value))
    # A causal mask hides no query, and no key unless keys outnumber queries: nothing to empty.
    is_causal = mask is not None and mask.parts == {"causal"}
    plain_causal = is_causal and bias is None and k.shape[-2] <= q.shape[-2]
    visible = None if plain_causal else visibility(q, k, mask=mask, bias=bias)
    if visible is not None:
        q, k, v = zero_unattended(q, k, v, visible)
        bias = None if bias is None else jnp.where(visible, bias, jnp.zeros((), bias.dtype))

    output = call(
        q,
        k,
        v,
        mask=one_batch_axis(visible, batch),
        bias=one_batch_axis(bias, batch),
        scale=scale,
        is_causal=plain_causal,
        implementation="xla",
    )
    if visible is not None:
        alive = jnp.any(visible, axis=-1)[..., None]  # (…, N, T, 1), each axis equal or 1
        output = jnp.where(alive, output, jnp.zeros((), output.dtype))
    return heads_first(output, layout)


def call(query: Array, key: Array, value: Array, **options: Any) -> Array:
    """Call ``jax.nn.dot_product_attention`` on arrays with the heads first, of any batch axes.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        value: ``(…, K, S, H)``.
        options: passed on; a mask and a bias have one batch axis.

    Returns:
        ``(…, N, T, H)``.
    """

    def positions_first(x: Array) -> Array:
        x = heads_first(x, "TNH")  # exchanges the two axes; XLA cancels a double exchange
        return jnp.reshape(x, (-1, *x.shape[-3:]))

    operands = (positions_first(x) for x in (query, key, value))
    with jax.numpy_dtype_promotion("standard"):  # its code promotes; so does its gradient
        output = jax.nn.dot_product_attention(*operands, **options)
    return heads_first(jnp.reshape(output, (*query.shape[:-3], *output.shape[1:])), "TNH")


def why_unsupported(request: Any) -> str | None:
    """Return why ``jax.nn`` cannot serve a :class:`~mha_book.attention.dispatch.AttentionSpec`, or None."""
    if "lse" in request.wants and request.dtype != "float32":
        return "its log-sum-exp comes in the dtype of the output, not in float32"
    if "lse" in request.wants:
        return "its log-sum-exp has no gradient"
    if request.dtype == "float64":
        return "it computes the softmax of float64 scores in float32"
    if request.dtype == "float16" and request.platform != "gpu":
        return f"its float16 products do not compile on {request.platform}"
    if request.value_shape[-1] != request.key_shape[-1]:
        return "it takes no value width other than the key width"
    return None


def run_cudnn(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Any,
    layout: str,
    return_lse: bool,
) -> Array:
    """Serve :func:`mha_book.attention.dispatch.attend` with cuDNN, which wants ``(B, T, N, H)``.

    Keys after the last query, which the causal mask hides, are left out. A ``scale`` that is an
    array is multiplied into the queries, since cuDNN wants a number; these are rounded once more.
    """
    del bias, return_lse  # dispatch refuses them
    q, k, v = (heads_first(x, layout) for x in (query, key, value))
    if mask is not None:
        k, v = k[..., : q.shape[-2], :], v[..., : q.shape[-2], :]
    if scale is not None and not isinstance(scale, (int, float)):
        q, scale = (q.astype(jnp.float32) * scale).astype(q.dtype), 1.0
    output = call(q, k, v, scale=scale, is_causal=mask is not None, implementation="cudnn")
    return heads_first(output, layout)


def why_cudnn_unsupported(request: Any) -> str | None:
    """Return why cuDNN cannot serve a :class:`~mha_book.attention.dispatch.AttentionSpec`, or None."""
    width, generation = request.query_shape[-1], request.compute_capability
    if request.platform != "gpu" or generation is None or generation < (8, 0):
        return "it needs an NVIDIA GPU of compute capability 8.0 or more"
    if request.dtype not in ("bfloat16", "float16"):
        return f"it takes half precision, not {request.dtype}"
    if request.value_shape[-1] != width:
        return "it takes no value width other than the key width on every GPU"
    widest = 256 if generation >= (9, 0) else 128
    if width % 8 or width > widest:
        return f"it takes a head width that is a multiple of 8 up to {widest}, not {width}"
    if "lse" in request.wants:
        return "its log-sum-exp comes in the dtype of the output, not in float32"
    if request.has_bias or "array" in request.mask_kind:
        return "it is slow with a bias or an array of hidden pairs"
    if "band" in request.mask_kind:
        return "it shows the future to a left window, and knows no offset"
    if "lengths" in request.mask_kind:
        return "it was not tried with rows that see no key"
    return None
