"""``jax.nn.dot_product_attention`` (its XLA form) behind the contract of this package."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book.heads import heads_first
from mha_book.masks import Mask
from mha_book.visibility import one_batch_axis, silence, visibility

__all__ = ["call", "refuse", "run"]


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
    """Serve :func:`mha_book.dispatch.attend` with ``jax.nn``, which wants ``(B, T, N, H)``.

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
        q, k, v = silence(q, k, v, visible)
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


def refuse(request: Any) -> str | None:
    """Return why ``jax.nn`` cannot serve a :class:`~mha_book.request.Request`, or None."""
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
