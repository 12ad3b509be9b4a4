r"""An importance for where the first order says nothing: the second derivative of each gate.

Shapes: ``L`` layers, ``N`` heads.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["curvature"]

Loss = Callable[[Any, Array, Any], Array]


def curvature(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return the second order of an ablation, $g_h^2\, \partial^2 L / \partial g_h^2 / 2$.

    :func:`~mha_book.pruning.importance.taylor` is the first. The second is what is left where that
    vanishes: at a minimum of the loss, as the distance to what the whole model does is one at the
    whole model.

    Args:
        loss: of parameters, gates and example.
        params: of the model.
        gates: ``(L, N)``.
        example: what the loss is of.

    Returns:
        ``(L, N)``, in the unit of the loss.

    References:
        LeCun et al., Optimal brain damage, 1990.

    Example:
        >>> from mha_book.pruning.importance import taylor
        >>> loss = lambda params, gates, x: x * jnp.sum(params * (gates - 1) ** 2)
        >>> params, gates = jnp.array([[1.0, 2.0]]), jnp.ones((1, 2))
        >>> curvature(loss, params, gates, 3.0).tolist()
        [[3.0, 6.0]]
        >>> bool((taylor(loss, params, gates, 3.0) == 0).all())
        True
    """
    heads = jnp.eye(gates.size, dtype=gates.dtype).reshape(-1, *gates.shape)

    def slope(gates: Array) -> Array:
        return jax.grad(loss, argnums=1)(params, gates, example)

    def along(head: Array) -> Array:
        return jnp.sum(head * jax.jvp(slope, (gates,), (head,))[1])

    return gates**2 * jax.lax.map(along, heads).reshape(gates.shape) / 2
