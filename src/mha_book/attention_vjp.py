r"""The backward pass of attention, written out by hand: values, scores, bias and scale.

A gradient is called ``d_`` and the name of what it belongs to: ``d_output`` is
$\partial L / \partial O$ for a loss $L$. Each function here takes the gradient of a result and
gives those of the operands. Letters as in :mod:`mha_book.attention`: ``N`` query heads, ``K``
key/value heads, ``T`` queries, ``S`` keys, ``H`` and ``C`` widths; ``(T, H)`` is one head. A
key/value head serves a group of query heads, so its gradient is the sum over the group: with the
group folded into the rows, one matrix product does both.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mha_book.attention import _fold_groups
from mha_book.softmax_vjp import row_products, softmax_vjp

__all__ = [
    "AttentionGradients",
    "attention_vjp",
    "broadcast_vjp",
    "scores_vjp",
    "values_vjp",
]


class AttentionGradients(NamedTuple):
    """The gradients of attention, each with the shape and dtype of its operand.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``, summed over the query heads of each group.
        value: ``(…, K, S, C)``, likewise.
        bias: of the shape of the bias, or None where there is none.
        scale: ``()``.
        weight_factors: of the shape of the factors, or None where there are none.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    scale: Array
    weight_factors: Array | None


def values_vjp(
    weights: Float[Array, "*batch T S"],
    value: Float[Array, "*kv_batch S C"],
    d_output: Float[Array, "*batch T C"],
) -> tuple[Array, Array]:
    r"""Return the gradients of weights and values, from $O^{hic} = A^{hij} V^{hjc}$.

    $dA^{hij} = dO^{hic} V^{hjc}$ and $dV^{hjc} = A^{hij} dO^{hic}$; as matrices
    $dO\, V^\top$ and $A^\top dO$.

    Args:
        weights: ``(…, N, T, S)``.
        value: ``(…, K, S, C)``.
        d_output: ``(…, N, T, C)``.

    Returns:
        ``(…, N, T, S)`` and ``(…, K, S, C)``.

    Example:
        >>> d_weights, d_value = values_vjp(jnp.eye(2), jnp.ones((2, 3)), jnp.ones((2, 3)))
        >>> d_weights.tolist(), d_value.tolist()
        ([[3.0, 3.0], [3.0, 3.0]], [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """
    d_weights = _times(d_output, jnp.swapaxes(value, -1, -2))
    return d_weights, _transposed_times(weights, d_output, value)


def scores_vjp(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    d_scores: Float[Array, "*batch T S"],
    scale: float | Float[Array, ""],
) -> tuple[Array, Array, Array]:
    r"""Return the gradients of queries, keys and scale $s$, from $S^{hij} = s\, Q^{hia} K^{hja}$.

    $dQ^{hia} = s\, dS^{hij} K^{hja}$, $dK^{hja} = s\, dS^{hij} Q^{hia}$ and
    $ds = dS^{hij} K^{hja} Q^{hia}$, summed over all indices.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        d_scores: ``(…, N, T, S)``.
        scale: factor of the scores.

    Returns:
        ``(…, N, T, H)``, ``(…, K, S, H)`` and ``()``.

    Example:
        >>> one = jnp.ones((1, 1))
        >>> [float(x.sum()) for x in scores_vjp(3 * one, 5 * one, one, 0.5)]
        [2.5, 1.5, 15.0]
    """
    scale = jnp.asarray(scale, d_scores.dtype)
    mixed_keys = _times(d_scores, key)  # (…, N, T, H)
    d_key = _transposed_times(d_scores, scale * query, key)
    return scale * mixed_keys, d_key, jnp.sum(mixed_keys * query)


def broadcast_vjp(d_x: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Sum over the axes along which an array of ``shape`` was broadcast: the gradient of a bias.

    Args:
        d_x: the gradient of the array after broadcasting, for a bias that of the scores.
        shape: shape before, of the same rank, each axis equal or 1.

    Returns:
        Array of ``shape``.

    Example:
        >>> broadcast_vjp(jnp.ones((2, 3)), (1, 3)).tolist()
        [[2.0, 2.0, 2.0]]
    """
    axes = tuple(a for a, size in enumerate(shape) if size != d_x.shape[a])
    return jnp.sum(d_x, axis=axes, keepdims=True) if axes else d_x


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
    weight_factors: Float[Array, "..."] | None = None,
) -> AttentionGradients:
    r"""Return all gradients of attention, from its weights and its output.

    $O = (f \circ A)\, V$ with $A = \operatorname{softmax}(s\,Q K^\top + B)$ has the gradients
    $dA = f \circ dO\,V^\top$, $dS = A \circ (dA - D + d\ell)$ with $D$ of
    :func:`~mha_book.softmax_vjp.row_products`, from there :func:`scores_vjp`, and $dB = dS$. The
    log-sum-exp $\ell^{hi}$ of a row has the gradient
    $\partial \ell^{hi} / \partial S^{hij} = A^{hij}$. Masks need no line of their own: what they
    hide has weight zero.

    Weights and ``d_output`` enter as products alone, ``d_lse`` with the weights: each row of the
    weights may be multiplied by a number if the rows of ``d_output`` and ``d_lse`` are divided by
    it. So the exponentials serve as weights, where the sum of their row divides the other two.

    Args:
        query: ``(…, N, T, H)``; nothing in it may be NaN, see
            :func:`~mha_book.visibility.silence`.
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
        weight_factors: the factors $f$ of the weights, or None.

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
    dtype = weights.dtype
    scale = jnp.asarray(1.0 / math.sqrt(query.shape[-1]) if scale is None else scale, dtype)
    q, k, v, d_output = (x.astype(dtype) for x in (query, key, value, d_output))
    factored, d_factors = weights, None
    if weight_factors is not None:
        factored = weights * weight_factors.astype(dtype)
    d_weights, d_value = values_vjp(factored, v, d_output)
    if weight_factors is not None:
        d_factors = _narrow(weights * d_weights, weight_factors)
        d_weights = d_weights * weight_factors.astype(dtype)
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
    return broadcast_vjp(d_x, x.shape).astype(x.dtype)


def _times(rows: Array, matrix: Array) -> Array:
    """Return rows ``(…, N, T, X)`` times the matrices ``(…, K, X, Y)`` of their groups."""
    product = jnp.matmul(_fold_groups(rows, matrix), matrix)  # (…, K, G·T, Y)
    return jnp.reshape(product, (*rows.shape[:-1], matrix.shape[-1]))


def _transposed_times(left: Array, right: Array, like: Any) -> Array:
    """Return ``(…, N, T, X)`` transposed times ``(…, N, T, Y)``, summed to ``(…, K, X, Y)``."""
    left, right = _fold_groups(left, like), _fold_groups(right, like)
    # In this order the small result is turned, (Y, X) to (X, Y); never the many weights.
    return jnp.swapaxes(jnp.einsum("...tx,...ty->...yx", left, right), -1, -2)
