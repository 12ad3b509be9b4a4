r"""How much a model needs each of its heads: by ablation, derivative, weights, or chance.

Every head has a gate $g$, a factor of its output, that is 1 in the model as it is. A ``loss`` here
is a function of the parameters, the gates ``(L, N)`` and one example, which may be a batch. The
greater an importance, the more the loss would rise without the head.

What a score costs, in forward passes of an example: ablation $LN + 1$, a gradient of the gates
about 3, the curvature several for each head, the norm of the weights and chance none.

Shapes: ``L`` layers, ``N`` heads.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mha_book._checks import (
    as_key,
    check,
    check_floating,
    check_function,
    check_model,
    check_rank,
)
from mha_book.specialization.composition import block_norms

__all__ = [
    "Importance",
    "ablation",
    "curvature",
    "gate_gradient",
    "mean_importance",
    "normalize_layers",
    "random_importance",
    "taylor",
    "weight_norm",
]

Loss = Callable[[Any, Array, Any], Array]


class Importance(NamedTuple):
    """A score of every head over examples; a pytree, the running state of its own sum.

    Args:
        mean: ``(L, N)``, the mean over examples.
        squares: ``(L, N)``, the sum of squared deviations from it.
        examples: how many examples there were, a scalar.
    """

    mean: Array
    squares: Array
    examples: Array

    @property
    def standard_error(self) -> Array:
        """The standard error of the mean, ``(L, N)``; NaN for one example."""
        return jnp.sqrt(self.squares / (self.examples - 1) / self.examples)


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
    _check_scored(loss, gates)
    heads = jnp.eye(gates.size, dtype=bool).reshape(-1, *gates.shape)

    def without(head: Array) -> Array:
        return loss(params, jnp.where(head, jnp.zeros((), gates.dtype), gates), example)

    whole = loss(params, gates, example)
    check(jnp.shape(whole) == (), "loss", "a function that returns a scalar", jnp.shape(whole))
    closed: Array = jax.lax.map(without, heads)
    return jnp.reshape(closed, gates.shape) - whole


def gate_gradient(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return how sensitive the loss of an example is to each gate, $|\partial L / \partial g_h|$.

    The mean is to be taken over examples of one sequence each: within a batch, effects of opposite
    sign would cancel before the absolute value is taken.

    Args:
        loss: of parameters, gates and example.
        params: of the model.
        gates: ``(L, N)``.
        example: what the loss is of.

    Returns:
        ``(L, N)``, 0 or more.

    References:
        Michel et al., Are sixteen heads really better than one?, 2019, section 4.1.

    Example:
        >>> loss = lambda params, gates, x: -x * jnp.sum(params * gates)
        >>> params, gates = jnp.array([[1.0, -2.0]]), jnp.ones((1, 2))
        >>> gate_gradient(loss, params, gates, 3.0).tolist()
        [[3.0, 6.0]]
    """
    return jnp.abs(_gradient(loss, params, gates, example))


def taylor(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return the first-order estimate of :func:`ablation`, $-g_h\, \partial L / \partial g_h$.

    With all gates 1, :func:`gate_gradient` is the absolute value of this, example by example.

    Args:
        loss: of parameters, gates and example.
        params: of the model.
        gates: ``(L, N)``.
        example: what the loss is of.

    Returns:
        ``(L, N)``, in the unit of the loss, of either sign.

    References:
        Molchanov et al., Pruning convolutional neural networks for resource efficient inference,
        2017.

    Example:
        >>> loss = lambda params, gates, x: -x * jnp.sum(params * gates)
        >>> params, gates = jnp.array([[1.0, -2.0]]), jnp.ones((1, 2))
        >>> taylor(loss, params, gates, 3.0).tolist()
        [[3.0, -6.0]]
    """
    slope = _gradient(loss, params, gates, example)
    return -gates * slope


def curvature(
    loss: Loss, params: Any, gates: Float[Array, "L N"], example: Any
) -> Float[Array, "L N"]:
    r"""Return the second order of an ablation, $g_h^2\, \partial^2 L / \partial g_h^2 / 2$.

    :func:`taylor` is the first. The second is what is left where that vanishes: at a minimum of the
    loss. The distance to what the whole model does has one at the whole model.

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
        >>> loss = lambda params, gates, x: x * jnp.sum(params * (gates - 1) ** 2)
        >>> params, gates = jnp.array([[1.0, 2.0]]), jnp.ones((1, 2))
        >>> curvature(loss, params, gates, 3.0).tolist()
        [[3.0, 6.0]]
        >>> bool((taylor(loss, params, gates, 3.0) == 0).all())
        True
    """
    _check_scored(loss, gates)
    heads = jnp.eye(gates.size, dtype=gates.dtype).reshape(-1, *gates.shape)

    def slope(gates: Array) -> Array:
        return _gradient(loss, params, gates, example)

    def along(head: Array) -> Array:
        return jnp.sum(head * jax.jvp(slope, (gates,), (head,))[1])

    bent: Array = jax.lax.map(along, heads)
    return gates**2 * jnp.reshape(bent, gates.shape) / 2


def mean_importance(
    score: Callable[..., Array],
    loss: Loss,
    params: Any,
    gates: Float[Array, "L N"],
    examples: Iterable[Any],
) -> Importance:
    """Return the mean of a score over examples, one at a time, compiled once.

    Args:
        score: :func:`ablation`, :func:`gate_gradient`, :func:`taylor`, or another of their form.
        loss: of parameters, gates and example.
        params: of the model; an argument of the compiled function, not a constant in it.
        gates: ``(L, N)``.
        examples: at least one, all of the same shapes.

    Returns:
        Mean, spread and number.

    Raises:
        ValueError: there is no example.

    Example:
        >>> loss = lambda params, gates, x: -x * jnp.sum(params * gates)
        >>> params, gates = jnp.array([[1.0, -2.0]]), jnp.ones((1, 2))
        >>> found = mean_importance(taylor, loss, params, gates, jnp.array([1.0, 3.0]))
        >>> found.mean.tolist(), found.standard_error.tolist()
        ([[2.0, -4.0]], [[1.0, 2.0]])
    """

    @jax.jit
    def step(before: Importance, params: Any, gates: Array, example: Any) -> Importance:
        found = score(loss, params, gates, example)
        count = before.examples + 1
        moved = found - before.mean
        mean = before.mean + moved / count
        return Importance(mean, before.squares + moved * (found - mean), count)

    check_function(score, "score", "of the form of ablation")
    _check_scored(loss, gates)
    state = Importance(jnp.zeros_like(gates), jnp.zeros_like(gates), jnp.zeros((), gates.dtype))
    for example in examples:
        state = step(state, params, gates, example)
    check(float(state.examples) > 0, "examples", "at least one", "none")
    return state


def normalize_layers(importance: Float[Array, "L N"]) -> Float[Array, "L N"]:
    """Divide the importance of each layer by its Euclidean norm, as Michel et al. do.

    Args:
        importance: ``(L, N)``.

    Returns:
        ``(L, N)``; a layer of zeros stays one.

    References:
        Michel et al., Are sixteen heads really better than one?, 2019, section 4.1.

    Example:
        >>> normalize_layers(jnp.array([[3.0, 4.0], [0.0, 0.0]])).round(3).tolist()
        [[0.6..., 0.8...], [0.0, 0.0]]
    """
    check_floating(importance, "importance")
    what = "axes (L, N), that is rank 2"
    check(importance.ndim == 2, "importance", what, f"shape {importance.shape}")
    norm = jnp.linalg.norm(importance, axis=1, keepdims=True)
    return importance / jnp.where(norm > 0, norm, 1.0)


def weight_norm(params: Any) -> Float[Array, "L N"]:
    r"""Return $\lVert W_V^h W_O^h \rVert$ of every head: an importance that needs no data.

    Args:
        params: of a model: its ``layers`` have parameters ``attention``.

    Returns:
        ``(L, N)``.

    Example:
        >>> from mha_book.models.tiny import TinyLayer, TinyParams
        >>> from mha_book.multihead.parameters import MultiHeadParams
        >>> layer = MultiHeadParams(*[jnp.ones((4, 2, 1))] * 3, jnp.ones((2, 1, 4)))
        >>> params = TinyParams(None, None, (TinyLayer(None, layer),), None, None)
        >>> weight_norm(params).tolist()
        [[4.0, 4.0]]
    """
    check_model(params)
    return jnp.stack([block_norms(layer.attention).w_v_w_o for layer in params.layers])


def random_importance(rng_key: Key[Array, ""], shape: tuple[int, int]) -> Float[Array, "L N"]:
    """Return numbers drawn evenly from 0 to 1: the control of every other importance.

    Args:
        rng_key: PRNG key.
        shape: ``(L, N)``.

    Returns:
        ``(L, N)``.

    Example:
        >>> random_importance(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """
    rng_key = as_key(rng_key)
    return jax.random.uniform(rng_key, shape)


def _gradient(loss: Loss, params: Any, gates: Array, example: Any) -> Array:
    """Return the gradient of the loss with respect to the gates."""
    _check_scored(loss, gates)

    def of_gates(gates: Array) -> Array:
        found = loss(params, gates, example)
        check(jnp.shape(found) == (), "loss", "a function that returns a scalar", jnp.shape(found))
        return found

    found: Array = jax.grad(of_gates)(gates)
    return found


def _check_scored(loss: Loss, gates: Array) -> None:
    check_function(loss, "loss", "of parameters, gates and example")
    check_rank(gates, "gates", "(L, N)", 2)
    check_floating(gates, "gates")
