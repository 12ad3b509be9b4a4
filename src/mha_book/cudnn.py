"""cuDNN's flash attention, through ``jax.nn``, behind the contract of this package.

For half precision on NVIDIA GPUs; it never holds the scores. It is given what it is known to do
right: no mask, or the causal one. Not measured: no such device was at hand.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from mha_book import jax_nn
from mha_book.heads import heads_first
from mha_book.masks import Mask

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
) -> Array:
    """Serve :func:`mha_book.dispatch.attend` with cuDNN, which wants ``(B, T, N, H)``.

    Keys after the last query, which the causal mask hides, are left out. A ``scale`` that is an
    array is multiplied into the queries, since cuDNN wants a number; these are rounded once more.
    """
    del bias, return_lse  # dispatch refuses them
    q, k, v = (heads_first(x, layout) for x in (query, key, value))
    if mask is not None:
        k, v = k[..., : q.shape[-2], :], v[..., : q.shape[-2], :]
    if scale is not None and not isinstance(scale, (int, float)):
        q, scale = (q.astype(jnp.float32) * scale).astype(q.dtype), 1.0
    output = jax_nn.call(q, k, v, scale=scale, is_causal=mask is not None, implementation="cudnn")
    return heads_first(output, layout)


def refuse(request: Any) -> str | None:
    """Return why cuDNN cannot serve a :class:`~mha_book.request.Request`, or None."""
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
