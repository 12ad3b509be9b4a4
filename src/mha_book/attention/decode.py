r"""Attention for few queries over many keys, as when a model writes one token after another.

Then the work is reading keys and values once. The reference first empties the keys and values that
no query sees, which writes both anew: several times the cost of the products. Here the products
read them where they are. A hidden key is harmless: its score is replaced before the softmax. A
hidden value has weight zero, and zero times a number is zero; only if what lies there is no number
(NaN, infinity) does the output show it, and then the product is taken again with those values
emptied, one head at a time.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book._checks import accumulator_dtype
from mha_book.attention.operands import LogitSoftcap, Operands, fold_groups
from mha_book.attention.reference import exponentials, reference_attention, scores
from mha_book.masks import Mask, zero_unattended

__all__: list[str] = []

FEW_QUERIES = 4
"""Up to how many queries a head this is preferred on a CPU."""


# Into a program that appends to the cache and then attends, this is traced as if written there:
# across a call XLA gives the keys another order on a GPU, and exchanges all of them there and back.
@functools.partial(jax.jit, inline=True)
def decode_attention(operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exp without writing keys or values anew.

    Any number of queries is served; with many of them there is nothing to gain. Derivatives, in
    either mode, are those of :func:`~mha_book.attention.reference.reference_attention`.
    """
    query, key, value, _, bias, scale, _, softcap = operands
    scale = jnp.asarray(scale, accumulator_dtype(query.dtype))
    return _attend(query, key, value, bias, scale, operands.visible(), softcap)


@jax.custom_jvp
def _attend(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    scale: Array,
    visible: Array | None,
    softcap: LogitSoftcap | None,
) -> tuple[Array, Array]:
    """Return the output ``(…, N, T, C)`` and the log-sum-exp ``(…, N, T)``."""
    numerators, total, lse = exponentials(scores(query, key, bias, scale, softcap), visible)
    rows = fold_groups(numerators, value)  # (…, K, G·T, S)
    output = _product(rows, value) if visible is None else _guarded(query, rows, value, visible)
    output = jnp.reshape(output, (*numerators.shape[:-1], value.shape[-1]))  # (…, N, T, C)
    return (output / total).astype(query.dtype), lse


def _product(rows: Array, value: Array) -> Array:
    return jnp.matmul(rows, value.astype(rows.dtype))  # (…, K, G·T, C)


@jax.custom_batching.custom_vmap
def _guarded(query: Array, rows: Array, value: Array, visible: Array) -> Any:
    """Return the product; where it is no number, once more with hidden values emptied."""
    output = _product(rows, value)

    def emptied(_: Array) -> Array:
        queries, ones = (jnp.ones((*x.shape[:-1], 1), value.dtype) for x in (query, value))
        seen = zero_unattended(queries, ones, ones, visible)[2] > 0  # (…, K, S, 1)
        zero = jnp.zeros((), value.dtype)
        heads = [jnp.reshape(x, (-1, *x.shape[-2:])) for x in (rows, value, seen)]
        one_by_one = jax.lax.map(
            lambda x: _product(x[0], jnp.where(x[2], x[1], zero)), tuple(heads)
        )
        return jnp.reshape(one_by_one, output.shape)

    return jax.lax.cond(jnp.all(jnp.isfinite(output)), lambda x: x, emptied, output)


@_guarded.def_vmap
def _(size: int, is_batched: list[bool], *arrays: Array) -> tuple[Array, bool]:
    """Take the new axis as one more batch axis: a branch by entry would run both for all."""
    whole = [
        x if has_axis else jnp.broadcast_to(x[None], (size, *x.shape))
        for x, has_axis in zip(arrays, is_batched, strict=True)
    ]
    return _guarded(*whole), True


@_attend.defjvp
def _attend_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    *operands, visible, softcap = primals

    def reference(query: Array, key: Array, value: Array, bias: Array | None, scale: Array) -> Any:
        mask = None if visible is None else Mask(array=visible)
        return reference_attention(Operands(query, key, value, mask, bias, scale, softcap=softcap))

    _, changes = jax.jvp(reference, tuple(operands), tuple(tangents[:-2]))
    return _attend(*primals), changes
