r"""The backward pass of the softmax, by its Jacobian and without it.

A gradient is called ``d_`` and the name of what it belongs to. One row of ``S`` scores gives one
row of ``S`` weights, $A^{j} = \exp(S^{j}) / \sum_{j'} \exp(S^{j'})$.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["row_products", "softmax_jacobian", "softmax_vjp"]


def softmax_jacobian(weights: Float[Array, "*batch S"]) -> Float[Array, "*batch S S"]:
    r"""Return how each weight of a row depends on each score of that row.

    $\partial A^{j} / \partial S^{j'} = A^{j} (\delta^{jj'} - A^{j'})$. The matrix is symmetric, and
    its rows sum to zero: adding one number to all scores changes nothing.

    Args:
        weights: ``(…, S)``, the softmax of a row of scores.

    Returns:
        ``(…, S, S)``.

    Example:
        >>> softmax_jacobian(jnp.array([0.25, 0.75])).tolist()
        [[0.1875, -0.1875], [-0.1875, 0.1875]]
    """
    delta = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    delta = jnp.reshape(delta, (1,) * (weights.ndim - 1) + delta.shape)
    return weights[..., :, None] * (delta - weights[..., None, :])


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
        inner: ``(…, 1)``, the sum over $j'$ where it is known already (:func:`row_products`).

    Returns:
        ``(…, S)``.

    Example:
        >>> softmax_vjp(jnp.array([0.25, 0.75]), jnp.array([1.0, 0.0])).tolist()
        [0.1875, -0.1875]
    """
    if inner is None:
        inner = row_products(weights, d_weights)
    return weights * (d_weights - inner)


def row_products(x: Float[Array, "*batch C"], d_x: Float[Array, "*batch C"]) -> Array:
    r"""Return $D^{i} = \sum_c x^{ic}\, dx^{ic}$ for every row, the last axis kept.

    For attention the sum over the keys that :func:`softmax_vjp` subtracts is one over the width of
    the values too,
    $\sum_j A^{ij} dA^{ij} = \sum_{jc} A^{ij} V^{jc} dO^{ic} = \sum_c O^{ic} dO^{ic}$:
    ``C`` products a row instead of ``S``, and no need of the weights.

    Args:
        x: ``(…, C)``, the output or the weights.
        d_x: ``(…, C)``, its gradient.

    Returns:
        ``(…, 1)``.

    Example:
        >>> row_products(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
        [[11.0]]
    """
    return jnp.sum(x * d_x, axis=-1, keepdims=True)
