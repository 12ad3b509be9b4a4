r"""How much a model needs each of its heads: by ablation, derivative, weights, or chance.

Every head has a gate $g$, a factor of its output, that is 1 in the model as it is. A ``loss`` here
is a function of the parameters, the gates ``(L, N)`` and one example, which may be a batch. The
greater an importance, the more the loss would rise without the head.

What a score costs, in forward passes of an example: ablation $LN + 1$, a gradient of the gates
about 3, the curvature several for each head, the norm of the weights and chance none.

Shapes: ``L`` layers, ``N`` heads.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book._checks import check, check_function, check_model, checked, within_one
from mha_book.specialization.composition import ov_norms
from mha_book.specialization.patching import activation_patching, attribution_patching

__all__ = ["ablation", "gate_gradient", "taylor"]

Loss = Callable[[Any, Array, Any], Array]


@checked
def ablation(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return what the loss is without each head, less what it is: $L(g_h = 0) - L(g)$.

    Positive for a head that helps. Heads are closed one at a time, at the memory of one forward
    pass; a head whose gate is 0 already has the importance 0.

    Args:
        loss: of parameters, gates and example.
        params: of the model.
        gates: ``(L, N)``, where the model stands; ones for the whole model.
        example: what the loss is of.

    Returns:
        ``(L, N)``, in the unit of the loss.

    Example:
        >>> loss = lambda params, gates, x: -x * jnp.sum(params * gates)
        >>> params, gates = jnp.array([[1.0, -2.0]]), jnp.ones((1, 2))
        >>> ablation(loss, params, gates, 3.0).tolist()
        [[3.0, -6.0]]
    """
    return activation_patching(_of_gates(loss, params, example), gates)


@checked
def gate_gradient(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return how sensitive the loss of an example is to each gate, $|\partial L / \partial g_h|$.

    As in Michel et al. (2019, section 4.1). The mean is to be taken over examples of one sequence
    each: within a batch, effects of opposite sign would cancel before the absolute value is taken.
    The arguments are those of :func:`ablation`.

    Returns:
        ``(L, N)``, in the unit of the loss, never negative.

    Example:
        >>> loss = lambda params, gates, x: -x * jnp.sum(params * gates)
        >>> params, gates = jnp.array([[1.0, -2.0]]), jnp.ones((1, 2))
        >>> gate_gradient(loss, params, gates, 3.0).tolist()
        [[3.0, 6.0]]
    """
    return jnp.abs(jax.grad(_of_gates(loss, params, example))(gates))


@checked
def taylor(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return the first-order estimate of :func:`ablation`, $-g_h\, \partial L / \partial g_h$.

    With all gates 1, ``gate_gradient`` is the absolute value of this, example by example.
    The arguments are those of :func:`ablation`.

    Returns:
        ``(L, N)``, in the unit of the loss, of either sign.

    References:
        Molchanov et al., Pruning convolutional neural networks, 2017 (with its absolute value).

    Example:
        >>> loss = lambda params, gates, x: -x * jnp.sum(params * gates)
        >>> params, gates = jnp.array([[1.0, -2.0]]), jnp.ones((1, 2))
        >>> taylor(loss, params, gates, 3.0).tolist()
        [[3.0, -6.0]]
    """
    return attribution_patching(_of_gates(loss, params, example), gates)


@checked
def curvature(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return the second order of an ablation, $g_h^2\, \partial^2 L / \partial g_h^2 / 2$.

    :func:`taylor` is the first. The second is what is left where that vanishes: at a minimum of the
    loss. The distance to what the whole model does has one at the whole model.

    The arguments are those of :func:`ablation`. (LeCun et al., Optimal brain damage, 1990.)
    """
    heads = jnp.eye(gates.size, dtype=gates.dtype).reshape(-1, *gates.shape)
    slope = jax.grad(_of_gates(loss, params, example))

    def along(head: Array) -> Array:
        return jnp.sum(head * jax.jvp(slope, (gates,), (head,))[1])

    bent: Array = jax.lax.map(along, heads)
    return gates**2 * jnp.reshape(bent, gates.shape) / 2


@checked
def normalize_layers(importance: Float[Array, "L N"]) -> Float[Array, "L N"]:
    """Divide the importance of each layer by its Euclidean norm, as Michel et al. (2019) do.

    A layer of zeros stays one. Squares are taken of numbers of at most 1, in float32 or wider.
    """
    importance = within_one(importance, 1)
    size = jnp.linalg.norm(importance, axis=1, keepdims=True)
    return importance / jnp.where(size == 0, 1.0, size)


def weight_norm(params: Any) -> Float[Array, "L N"]:
    r"""Return $\lVert W_V^h W_O^h \rVert$ of every head of a model: it needs no data."""
    check_model(params)
    sizes = [layer.attention.w_o.shape[0] for layer in params.layers]
    check(len(set(sizes)) == 1, "params", "layers with equally many heads", f"{sizes} heads")
    return jnp.stack([ov_norms(layer.attention) for layer in params.layers])


def _of_gates(loss: Loss, params: Any, example: Any) -> Callable[[Array], Array]:
    """Return the loss as a function of the gates alone."""
    check_function(loss, "loss", "of parameters, gates and example")

    def of_gates(gates: Array) -> Array:
        found = loss(params, gates, example)
        check(jnp.shape(found) == (), "loss", "a function that returns a scalar", jnp.shape(found))
        return found

    return of_gates
