"""What an implementation of attention gets: operands that were checked and made canonical once.

Shapes, here and in the modules beside: ``N`` query heads, ``K`` key/value heads, ``G = N/K`` query
heads to each of them, ``T`` queries, ``S`` keys, ``H`` width of queries and keys, ``C`` width of
values. Heads stand before positions. Query head ``n`` reads key/value head ``n // G``.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mha_book._checks import (
    accumulator_dtype,
    check,
    check_flag,
    check_like_scores,
    check_number,
    check_operands,
    check_scale,
)
from mha_book.masks import Mask, as_mask, visibility

__all__: list[str] = []

Result = TypeVar("Result")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class LogitSoftcap:
    """The number ``c`` of ``c · tanh(S / c)``: a part of the program, as kernels want it."""

    cap: float

    def __call__(self, scores: Array) -> Array:
        """Return the bounded scores."""
        cap = jnp.asarray(self.cap, scores.dtype)
        return jnp.tanh(scores / cap) * cap

    def slope(self, capped: Array) -> Array:
        """Return the derivative, of what the cap made of the scores."""
        share = capped / jnp.asarray(self.cap, capped.dtype)
        return 1 - share * share


class Operands(NamedTuple):
    """One call of attention, heads first; without an axis of heads it is that of one head."""

    query: Array  # (…, N, T, H)
    key: Array  # (…, K, S, H)
    value: Array  # (…, K, S, C)
    mask: Mask | None = None  # everything that the caller masks, as one structure
    bias: Array | None = None  # (…, N, T, S), each axis equal or 1
    scale: Any = 1.0  # float | Float[Array, ""], factor of the scores
    dropout_multiplier: Array | None = None  # (…, N, T, S), each axis equal or 1
    softcap: LogitSoftcap | None = None  # what bounds the scores before the bias is added

    @property
    def scores_shape(self) -> tuple[Any, ...]:
        """``(…, N, T, S)``; an exported program may leave lengths open, which are no integers."""
        return (*self.query.shape[:-1], self.key.shape[-2])

    @property
    def is_empty(self) -> bool:
        """Whether there is no head, no query, no key or no value width: nothing to compute."""
        return 0 in (*self.scores_shape, self.value.shape[-1])

    def with_head_axis(self) -> "Operands":
        """Return the call of one head, ``(T, H)``, as one of ``N = 1``, ``(1, T, H)``."""
        mask = self.mask
        if mask is not None and mask.array is not None:
            mask = dataclasses.replace(mask, array=mask.array[None])
        query, key, value = (x[None] for x in self[:3])
        bias, factors = (
            None if x is None else x[None] for x in (self.bias, self.dropout_multiplier)
        )
        return Operands(query, key, value, mask, bias, self.scale, factors, self.softcap)

    def visible(self) -> Bool[Array, "..."] | None:
        """Return which key each query sees, see :func:`~mha_book.masks.visibility`."""
        return visibility(self.mask, self.bias, self.scores_shape)


def prepare(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    dropout_multiplier: Float[Array, "..."] | None = None,
    logit_softcap: float | None = None,
) -> Operands:
    """Check the arguments of attention and make one record of them.

    They are those of :func:`~mha_book.attention.dispatch.attend`, heads first; ``value`` is the
    keys again where only weights are asked for.
    """
    check_operands(query, key, value)
    numpy = np.ndarray
    if isinstance(query, numpy) or isinstance(key, numpy) or isinstance(value, numpy):
        query, key, value = (jnp.asarray(x) for x in (query, key, value))  # in JAX's dtypes
    scores_shape = (*query.shape[:-1], key.shape[-2])
    if type(is_causal) is not bool:  # text and numbers have a truth value too
        check_flag(is_causal, "is_causal")
    if mask is not None or is_causal:
        mask = as_mask(mask, is_causal, scores_shape)
    if bias is not None:
        check_like_scores(bias, "bias", scores_shape)
        bias = jnp.asarray(bias) if isinstance(bias, np.ndarray) else bias
    if dropout_multiplier is not None:
        check_like_scores(dropout_multiplier, "dropout_multiplier", scores_shape)
        if isinstance(dropout_multiplier, np.ndarray):
            dropout_multiplier = jnp.asarray(dropout_multiplier)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1] or 1)
    else:
        check_scale(scale)
        scale = float(scale) if isinstance(scale, int | np.generic) else scale
    softcap = None
    if logit_softcap is not None:
        is_number = isinstance(logit_softcap, int | float | np.generic)
        got = logit_softcap if is_number else repr(type(logit_softcap))
        check(is_number, "logit_softcap", "a positive number, or None", got)
        check_number(logit_softcap, "logit_softcap", "a positive number, or None", positive=True)
        softcap = LogitSoftcap(float(logit_softcap))
    return Operands(query, key, value, mask, bias, scale, dropout_multiplier, softcap)


def empty_result(operands: Operands) -> tuple[Array, Array]:
    """Return output and log-sum-exp where there is nothing to compute: every row is empty."""
    rows = operands.query.shape[:-1]
    output = jnp.zeros((*rows, operands.value.shape[-1]), operands.query.dtype)
    return output, jnp.full(rows, -jnp.inf, accumulator_dtype(operands.query.dtype))


def fold_groups(rows: Float[Array, "*batch T X"], like: Float[Array, "*kv_batch S Y"]) -> Array:
    """Fold the query heads of each group into the rows, so that no key is repeated.

    ``rows``, ``(…, N, T, X)``, are queries, weights, or what else has a row for each query.
    """
    if rows.ndim == 2 or rows.shape[-3] == like.shape[-3]:
        return rows
    group = rows.shape[-3] // like.shape[-3]
    return jnp.reshape(rows, (*like.shape[:-2], group * rows.shape[-2], rows.shape[-1]))


def varying_axes(x: Array) -> frozenset[str]:
    """Return the axes of a mesh that an array differs over, as ``jax.shard_map`` tracks them."""
    kind: Any = jax.typeof(x)
    kind = getattr(kind, "manual_axis_type", kind)  # JAX moved the axes there
    return frozenset(getattr(kind, "varying", getattr(kind, "vma", ())))


def with_compiler_sharding(function: Callable[[Operands], Result], operands: Operands) -> Result:
    """Call a function of the operands that JAX's explicit sharding does not follow; XLA does."""
    query = jax.typeof(operands.query).sharding
    explicit = [
        name
        for name, kind in zip(query.mesh.axis_names, query.mesh.axis_types, strict=True)
        if kind == jax.sharding.AxisType.Explicit
    ]
    if not explicit:
        return function(operands)
    rows = jax.sharding.PartitionSpec(*query.spec[:-1])
    lies = (jax.sharding.PartitionSpec(*rows, None), rows)
    by_compiler = jax.sharding.auto_axes(function, axes=tuple(explicit), out_sharding=lies)
    with jax.sharding.use_abstract_mesh(query.mesh):  # it may stand in the types alone
        result: Result = by_compiler(operands)
    return result
