r"""Attention for few queries over many keys, as when a model writes one token after another.

Then the work is reading keys and values once. The reference first empties the keys and values that
no query sees, which writes both anew: several times the cost of the products. Here the products
read them where they are. A hidden key is harmless: its score is replaced before the softmax. A
hidden value has weight zero, and zero times a number is zero; only if what lies there is no number
(NaN, infinity) does the output show it, and then the product is taken again with those values
emptied, one head at a time.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book._checks import wide
from mha_book.attention.reference import (
    _exponentials,
    _fold_groups,
    _scores,
    scaled_dot_product_attention,
)
from mha_book.heads import heads_first
from mha_book.masks import Mask, visibility, zero_unattended

__all__ = ["FEW_QUERIES", "run"]

FEW_QUERIES = 4
"""Up to how many queries a head this is preferred on a CPU."""


def run(
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Any,
    layout: str,
    return_lse: bool,
) -> Any:
    """Serve :func:`mha_book.attention.dispatch.attend` without writing keys or values anew.

    Any number of queries is served; with many of them there is nothing to gain. Derivatives, in
    either mode, are those of :func:`~mha_book.attention.reference.scaled_dot_product_attention`.
    """
    query, key, value = (heads_first(x, layout) for x in (query, key, value))
    visible = visibility(query, key, mask=mask, bias=bias)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scale = jnp.asarray(scale, wide(query.dtype))
    output, lse = _attend(query, key, value, bias, scale, visible)
    output = heads_first(output, layout)
    return (output, lse) if return_lse else output


@jax.custom_jvp
def _attend(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    scale: Array,
    visible: Array | None,
) -> tuple[Array, Array]:
    """Return the output ``(…, N, T, C)`` and the log-sum-exp ``(…, N, T)``."""
    exponentials, total, lse = _exponentials(_scores(query, key, bias, scale), visible)
    rows = _fold_groups(exponentials, value)  # (…, K, G·T, S)

    def product(rows: Array, value: Array) -> Array:
        return jnp.matmul(rows, value.astype(rows.dtype))  # (…, K, G·T, C)

    def emptied(rows: Array, value: Array, output: Array) -> Array:
        ones, zero = jnp.ones((*value.shape[:-1], 1), value.dtype), jnp.zeros((), value.dtype)
        seen = zero_unattended(query[..., :1], ones, ones, visible)[2] > 0  # (…, K, S, 1)
        heads = [jnp.reshape(x, (-1, *x.shape[-2:])) for x in (rows, value, seen)]
        one_by_one = jax.lax.map(lambda x: product(x[0], jnp.where(x[2], x[1], zero)), tuple(heads))
        return jnp.reshape(one_by_one, output.shape)

    output = product(rows, value)
    if visible is not None:
        is_number = jnp.all(jnp.isfinite(output))
        output = jax.lax.cond(is_number, lambda r, v, o: o, emptied, rows, value, output)
    output = jnp.reshape(output, (*exponentials.shape[:-1], value.shape[-1]))  # (…, N, T, C)
    return (output / total).astype(query.dtype), lse


@_attend.defjvp
def _attend_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    *operands, visible = primals

    def reference(query: Array, key: Array, value: Array, bias: Array | None, scale: Array) -> Any:
        kinds: dict[str, Any] = {"mask": visible, "bias": bias, "scale": scale}
        return scaled_dot_product_attention(query, key, value, **kinds, return_lse=True)

    _, changes = jax.jvp(reference, tuple(operands), tuple(tangents[:-1]))
    return _attend(*primals), changes
