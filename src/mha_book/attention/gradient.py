r"""Attention and its backward pass, written out by hand: softmax, values, scores, bias and scale.

A gradient is called ``d_`` and the name of what it belongs to: ``d_output`` is
$\partial L / \partial O$ for a loss $L$. Each function takes the gradient of a result and gives
those of the operands. Shapes: as in :mod:`~mha_book.attention.operands`; ``(T, H)`` is one head. A
key/value head serves a group of query heads, so its gradient is the sum over the group: with the
group folded into the rows, one matrix product does both.

The backward pass is served in two ways:

- *stored* (implementation "manual"): the exponentials of the forward pass are kept, ``N·T·S``
  numbers;
- *recomputed* (implementation "recompute"): of the softmax nothing is kept but the log-sum-exp,
  ``N·T`` numbers, and the exponentials are computed again.

A weight is $A^{hij} = \exp(S^{hij} - \lambda^{hi})$ as well, and so follows from its score and one
number of its row: this lets blockwise algorithms go through the keys piece by piece. Here whole
rows are at hand, and are divided by their sum, since $\lambda$ is rounded: of a row of scores near
$-10^{30}$, as an additive mask may leave, it no longer tells how many keys there were.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mha_book._checks import (
    accumulator_dtype,
    check_like_scores,
    check_numbers,
    check_operands,
    check_scale,
    check_type,
    checked,
)
from mha_book.attention.derivatives import with_gradient_by_hand
from mha_book.attention.operands import Operands, empty_result, fold_groups
from mha_book.attention.reference import exponentials, reference_attention, scores
from mha_book.masks import zero_unattended

__all__ = ["AttentionGradients", "attention_vjp", "softmax_jacobian", "softmax_vjp"]


@checked
def softmax_jacobian(weights: Float[Array, "*batch S"]) -> Float[Array, "*batch S S"]:
    r"""Return how each weight of a row depends on each score of that row.

    $\partial A^{j} / \partial S^{j'} = A^{j} (\delta^{jj'} - A^{j'})$. The matrix is symmetric, and
    its rows sum to zero: adding one number to all scores changes nothing.

    Args:
        weights: ``(…, S)``, the softmax of a row of scores.

    Example:
        >>> softmax_jacobian(jnp.array([0.25, 0.75])).tolist()
        [[0.1875, -0.1875], [-0.1875, 0.1875]]
    """
    delta = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    delta = jnp.reshape(delta, (1,) * (weights.ndim - 1) + delta.shape)
    return weights[..., :, None] * (delta - weights[..., None, :])


@checked
def softmax_vjp(
    weights: Float[Array, "*batch S"],
    d_weights: Float[Array, "*batch S"],
    inner: Float[Array, "*batch 1"] | None = None,
) -> Float[Array, "*batch S"]:
    r"""Return the gradient of the scores: the Jacobian's product, without the Jacobian.

    $dS^{j} = A^{j} \bigl(dA^{j} - \sum_{j'} A^{j'} dA^{j'}\bigr)$. Where a weight is zero, a masked
    key or an empty row, the gradient is zero.

    Args:
        weights: ``(…, S)``.
        d_weights: ``(…, S)``.
        inner: ``(…, 1)``, the sum over $j'$ where it is known already (``row_products``).

    Example:
        >>> softmax_vjp(jnp.array([0.25, 0.75]), jnp.array([1.0, 0.0])).tolist()
        [0.1875, -0.1875]
    """
    inner = row_products(weights, d_weights) if inner is None else inner
    return weights * (d_weights - inner)


@checked
def row_products(x: Float[Array, "*batch C"], d_x: Float[Array, "*batch C"]) -> Array:
    r"""Return $r^{i} = \sum_c x^{ic}\, dx^{ic}$ for every row, the last axis kept.

    For attention the sum over the keys that :func:`softmax_vjp` subtracts is one over the width of
    the values too,
    $\sum_j A^{ij} dA^{ij} = \sum_{jc} A^{ij} V^{jc} dO^{ic} = \sum_c O^{ic} dO^{ic}$:
    ``C`` products a row instead of ``S``, and no need of the weights. So ``x`` is the output or the
    weights, and ``d_x`` its gradient.
    """
    return jnp.sum(x * d_x, axis=-1, keepdims=True)


class AttentionGradients(NamedTuple):
    """The gradients of attention, each with the shape and dtype of its operand.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``, summed over the query heads of each group.
        value: ``(…, K, S, C)``, likewise.
        bias: of the shape of the bias, or None where there is none.
        scale: ``()``.
        dropout_multiplier: of the shape of the factors, or None where there are none.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    scale: Array
    dropout_multiplier: Array | None


@checked
def values_vjp(
    weights: Float[Array, "*batch T S"],
    value: Float[Array, "*kv_batch S C"],
    d_output: Float[Array, "*batch T C"],
) -> tuple[Array, Array]:
    r"""Return the gradients of weights and values, from $O^{hic} = A^{hij} V^{hjc}$.

    $dA^{hij} = dO^{hic} V^{hjc}$ and $dV^{hjc} = A^{hij} dO^{hic}$; as matrices
    $dO\, V^\top$ and $A^\top dO$. Their shapes are ``(…, N, T, S)`` and ``(…, K, S, C)``.
    """
    d_weights = _times(d_output, jnp.swapaxes(value, -1, -2))
    return d_weights, _transposed_times(weights, d_output, value)


@checked
def scores_vjp(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    d_scores: Float[Array, "*batch T S"],
    scale: float | Float[Array, ""],
) -> tuple[Array, Array, Array]:
    r"""Return the gradients of queries, keys and scale $s$, from $S^{hij} = s\, Q^{hia} K^{hja}$.

    $dQ^{hia} = s\, dS^{hij} K^{hja}$, $dK^{hja} = s\, dS^{hij} Q^{hia}$ and
    $ds = dS^{hij} K^{hja} Q^{hia}$, summed over all indices.
    """
    scale = jnp.asarray(scale, d_scores.dtype)
    mixed_keys = _times(d_scores, key)  # (…, N, T, H)
    d_key = _transposed_times(d_scores, scale * query, key)
    return scale * mixed_keys, d_key, jnp.sum(mixed_keys * query)


@checked
def attention_vjp(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    weights: Float[Array, "*batch T S"],
    output: Float[Array, "*batch T C"],
    d_output: Float[Array, "*batch T C"],
    *,
    d_lse: Float[Array, "*batch T"] | None = None,
    empty: Bool[Array, "*batch T"] | None = None,
    bias: Float[Array, "..."] | None = None,
    scale: float | Float[Array, ""] | None = None,
    dropout_multiplier: Float[Array, "..."] | None = None,
) -> AttentionGradients:
    r"""Return all gradients of attention, from its weights and its output.

    $O = (f \circ A)\, V$ with $A = \operatorname{softmax}(s\,Q K^\top + B)$ has the gradients
    $dA = f \circ dO\,V^\top$, $dS = A \circ (dA - r + d\lambda)$ with $r$ of
    ``row_products``, from there ``scores_vjp``, and $dB = dS$. The
    log-sum-exp $\lambda^{hi}$ of a row has the gradient
    $\partial \lambda^{hi} / \partial S^{hij} = A^{hij}$. Masks need no line of their own: what they
    hide has weight zero.

    Weights and ``d_output`` enter as products alone, ``d_lse`` with the weights: each row of the
    weights may be multiplied by a number if the rows of ``d_output`` and ``d_lse`` are divided by
    it. So the exponentials serve as weights, where the sum of their row divides the other two.

    Args:
        query: ``(…, N, T, H)``; nothing in it may be NaN, see
            :func:`~mha_book.masks.zero_unattended`.
        key: ``(…, K, S, H)``, likewise.
        value: ``(…, K, S, C)``, likewise.
        weights: ``(…, N, T, S)``, in the dtype in which to compute.
        output: ``(…, N, T, C)``, likewise.
        d_output: ``(…, N, T, C)``.
        d_lse: ``(…, N, T)``, the gradient of the log-sum-exp; None for zeros.
        empty: ``(…, N, T)``, which rows are empty: there ``d_lse`` may be anything, as the gradient
            of something that is -inf may well be. None where no row is.
        bias: the bias that was added, or None; only its shape and dtype matter.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        dropout_multiplier: the factors $f$ of the weights, or None.

    Returns:
        The gradients, each in the dtype of its operand.

    References:
        Dao et al., FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness,
        2022, appendix B.2.

    Example:
        >>> x = jnp.ones((1, 3))  # one key: its weight is 1 whatever its score
        >>> gradients = attention_vjp(x, x, x, jnp.ones((1, 1)), x, x)
        >>> gradients.query.tolist(), gradients.value.tolist()
        ([[0.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]])
    """
    check_operands(query, key, value)
    if bias is not None:
        check_like_scores(bias, "bias", weights.shape)
    if dropout_multiplier is not None:
        check_like_scores(dropout_multiplier, "dropout_multiplier", weights.shape)
    if scale is not None:
        check_scale(scale)
    dtype = weights.dtype
    scale = jnp.asarray(1.0 / math.sqrt(query.shape[-1] or 1) if scale is None else scale, dtype)
    q, k, v, d_output = (x.astype(dtype) for x in (query, key, value, d_output))
    factored, d_factors = weights, None
    if dropout_multiplier is not None:
        factored = weights * dropout_multiplier.astype(dtype)
    d_weights, d_value = values_vjp(factored, v, d_output)
    if dropout_multiplier is not None:
        d_factors = _narrow(weights * d_weights, dropout_multiplier)
        d_weights = d_weights * dropout_multiplier.astype(dtype)
    inner = row_products(output, d_output)  # (…, N, T, 1)
    inner = inner if d_lse is None else inner - d_lse.astype(dtype)[..., None]
    if empty is not None:
        inner = jnp.where(empty[..., None], jnp.zeros((), dtype), inner)
    d_scores = softmax_vjp(weights, d_weights, inner)
    d_query, d_key, d_scale = scores_vjp(q, k, d_scores, scale)
    return AttentionGradients(
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
        None if bias is None else _narrow(d_scores, bias),
        d_scale,
        d_factors,
    )


def _narrow(d_x: Array, x: Array) -> Array:
    """Sum over the axes along which ``x`` was broadcast, whose sizes are 1; in its dtype."""
    axes = tuple(a for a, size in enumerate(x.shape) if size != d_x.shape[a])
    return (jnp.sum(d_x, axis=axes, keepdims=True) if axes else d_x).astype(x.dtype)


def _times(rows: Array, matrix: Array) -> Array:
    """Return rows ``(…, N, T, X)`` times the matrices ``(…, K, X, Y)`` of their groups."""
    product = jnp.matmul(fold_groups(rows, matrix), matrix)  # (…, K, G·T, Y)
    return jnp.reshape(product, (*rows.shape[:-1], matrix.shape[-1]))


def _transposed_times(left: Array, right: Array, like: Any) -> Array:
    """Return ``(…, N, T, X)`` transposed times ``(…, N, T, Y)``, summed to ``(…, K, X, Y)``."""
    left, right = fold_groups(left, like), fold_groups(right, like)
    # In this order the small result is turned, (Y, X) to (X, Y); never the many weights.
    return jnp.swapaxes(jnp.einsum("...tx,...ty->...yx", left, right), -1, -2)


class Saved(NamedTuple):
    """What the forward pass keeps for the backward pass."""

    operands: Operands  # the call, what nobody attends to set to zero
    output: Array  # (…, N, T, C), in float32 at least
    lse: Array  # (…, N, T), likewise
    exponentials: Array | None  # (…, N, T, S), or None where they are to be recomputed
    total: Array | None  # (…, N, T, 1), their sums, or None


def forward(operands: Operands, *, recompute: bool = False) -> tuple[Array, Array, Saved]:
    """Return output and log-sum-exp of attention, and what :func:`backward` needs.

    The steps of :func:`~mha_book.attention.reference.reference_attention`; to ``recompute`` is to
    keep the log-sum-exp in place of the exponentials.
    """
    check_type(operands, "operands", Operands, "what prepare gives")
    if operands.is_empty:
        output, lse = empty_result(operands)
        kept = jnp.zeros(operands.scores_shape, lse.dtype), jnp.ones((*lse.shape, 1), lse.dtype)
        return output, lse, Saved(operands, output.astype(lse.dtype), lse, *kept)
    visible = operands.visible()
    query, key, value = zero_unattended(operands.query, operands.key, operands.value, visible)
    numerators, total, lse = exponentials(
        scores(query, key, operands.bias, operands.scale, operands.softcap), visible
    )
    factored = numerators
    if operands.dropout_multiplier is not None:
        factored = numerators * operands.dropout_multiplier.astype(numerators.dtype)
    output = _times(factored, value.astype(numerators.dtype)) / total  # (…, N, T, C)
    of_softmax = (None, None) if recompute else (numerators, total)
    saved = Saved(operands._replace(query=query, key=key, value=value), output, lse, *of_softmax)
    return output.astype(query.dtype), lse, saved


def backward(saved: Saved, d_output: Array, d_lse: Array | None = None) -> AttentionGradients:
    """Return the gradients of attention, from what :func:`forward` kept."""
    check_type(saved, "saved", Saved, "what forward gives")
    check_numbers(d_output, "d_output", saved.output.shape, "the shape of the output,")
    x = saved.operands._replace(scale=jnp.asarray(saved.operands.scale))
    weights, total = saved.exponentials, saved.total
    if weights is None or total is None:
        query = not_before(d_output, x.query)
        weights, total, _ = exponentials(
            scores(query, x.key, x.bias, x.scale, x.softcap), x.visible()
        )
    # The sum of a row divides the few numbers of d_output, not the many of the weights.
    d_output = d_output.astype(weights.dtype) / total
    d_lse = None if d_lse is None else d_lse / total[..., 0]
    return attention_vjp(
        x.query, x.key, x.value, weights, saved.output, d_output,
        d_lse=d_lse, empty=jnp.isneginf(saved.lse), bias=x.bias, scale=x.scale,
        dropout_multiplier=x.dropout_multiplier,
    )  # fmt: skip


def not_before(awaited: Array, x: Array) -> Array:
    """Return ``x`` so that it, and what is computed from it, has to wait for ``awaited``.

    A compiler that sees the same scores in both passes keeps them from the first, and one that
    does not may compute them long before they are needed: either way they take the memory that
    the second computation was to spare. (XLA drops ``jax.lax.optimization_barrier`` on a CPU
    before it orders the operations.) So a zero is added that it cannot know to be one.
    """
    summed = jnp.sum(awaited)
    never = jnp.logical_and(jnp.isnan(summed), jnp.isinf(summed))
    return x + never.astype(x.dtype)


def manual_attention(operands: Operands) -> tuple[Array, Array]:
    """Attend with the backward pass by hand, from the exponentials of the forward pass."""
    return _manual(_with_array_scale(operands))


def recompute_attention(operands: Operands) -> tuple[Array, Array]:
    """Attend with the backward pass by hand, the weights computed again."""
    return _recompute(_with_array_scale(operands))


def why_unsupported(spec: Any) -> str | None:
    """Return why the backward pass by hand cannot serve an attention spec, or None."""
    return "its gradient by hand knows no soft cap of the scores" if spec.has_softcap else None


def _with_array_scale(operands: Operands) -> Operands:
    """Make the scale an array, so that it has a gradient."""
    dtype = accumulator_dtype(operands.query.dtype)
    return operands._replace(scale=jnp.asarray(operands.scale, dtype))


def _by_hand(recompute: bool) -> Callable[[Operands], tuple[Array, Array]]:
    def keeping(operands: Operands) -> tuple[tuple[Array, Array], Saved]:
        output, lse, saved = forward(operands, recompute=recompute)
        return (output, lse), saved

    def pulling(saved: Saved, cotangents: tuple[Array, Array]) -> tuple[Operands]:
        query, key, value, bias, scale, dropout_multiplier = backward(saved, *cotangents)
        # A mask has no gradient.
        return (Operands(query, key, value, None, bias, scale, dropout_multiplier),)

    return with_gradient_by_hand(keeping, pulling, reference_attention)


_manual, _recompute = _by_hand(False), _by_hand(True)
