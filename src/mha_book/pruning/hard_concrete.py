r"""Gates that are learned: random, differentiable, and exactly 0 or 1 much of the time.

A hard concrete gate is a sigmoid of noise, stretched beyond 0 and 1 and cut off there:
$g = \min(1, \max(0, s\,(\zeta - \gamma) + \gamma))$ with
$s = \operatorname{sigmoid}((\log u - \log(1 - u) + \log\alpha)/\beta)$, $u$ uniform on (0, 1),
$\gamma < 0$ and $\zeta > 1$. It is open, $g \ne 0$, with the probability
$\operatorname{sigmoid}(\log\alpha - \beta \log(-\gamma/\zeta))$, which has a gradient: a training
minimises the loss with drawn gates plus a price times the expected number of open gates. Pure
functions of $\log\alpha$, which has any shape: ``(L, N)`` for the heads of a model.

References:
    Louizos et al., Learning sparse neural networks through L0 regularization, 2018;
    Voita et al., Analyzing multi-head self-attention, 2019.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mha_book._checks import as_key, check, check_floating, check_share

__all__ = [
    "BETA",
    "GAMMA",
    "ZETA",
    "deterministic_gates",
    "expected_l0",
    "init_log_alpha",
    "nonzero_probability",
    "sample_gates",
]

BETA = 2 / 3
"""The temperature of Louizos et al.: the lower, the closer to 0 and 1."""
GAMMA = -0.1
"""The lower end of the stretched sigmoid."""
ZETA = 1.1
"""Its upper end."""


def sample_gates(
    rng_key: Key[Array, ""], log_alpha: Float[Array, "*heads"]
) -> Float[Array, "*heads"]:
    """Draw gates; they have a gradient with respect to ``log_alpha`` where they are not 0 or 1.

    Args:
        rng_key: PRNG key.
        log_alpha: any shape.

    Returns:
        Gates from 0 to 1, of the same shape.

    Raises:
        ValueError: ``log_alpha`` is not floating point.

    Example:
        >>> sample_gates(jax.random.key(0), jnp.array([-20.0, 20.0])).tolist()
        [0.0, 1.0]
    """
    rng_key = as_key(rng_key)
    check_floating(log_alpha, "log_alpha")
    noise = jax.random.logistic(rng_key, log_alpha.shape, log_alpha.dtype)
    return _stretched(jax.nn.sigmoid((noise + log_alpha) / BETA))


def nonzero_probability(log_alpha: Float[Array, "*heads"]) -> Float[Array, "*heads"]:
    """Return the probability that each gate is not 0, that it is open.

    Args:
        log_alpha: any shape.

    Returns:
        Of the same shape.

    Example:
        >>> round(float(nonzero_probability(jnp.array(0.0))), 3)
        0.832
    """
    check_floating(log_alpha, "log_alpha")
    return jax.nn.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


def expected_l0(log_alpha: Float[Array, "*heads"]) -> Float[Array, ""]:
    """Return the expected L0 norm: the expected number of gates that are not 0.

    A training adds it to its loss, times a factor.

    Args:
        log_alpha: any shape.

    Returns:
        A scalar.

    Example:
        >>> round(float(expected_l0(jnp.zeros((2, 3)))), 2)
        4.99
    """
    return jnp.sum(nonzero_probability(log_alpha))


def deterministic_gates(log_alpha: Float[Array, "*heads"]) -> Float[Array, "*heads"]:
    """Return the gates to use after training, without noise; heads whose gate is 0 can be removed.

    Args:
        log_alpha: any shape.

    Returns:
        Gates from 0 to 1, of the same shape.

    Example:
        >>> deterministic_gates(jnp.array([-5.0, 5.0])).tolist()
        [0.0, 1.0]
    """
    check_floating(log_alpha, "log_alpha")
    return _stretched(jax.nn.sigmoid(log_alpha))


def init_log_alpha(shape: tuple[int, ...], probability: float = 0.95) -> Float[Array, "..."]:
    """Return a ``log_alpha`` with which every gate is open with a given probability.

    Args:
        shape: of the gates.
        probability: between 0 and 1.

    Returns:
        float32, of that shape.

    Raises:
        ValueError: ``probability`` is not between 0 and 1.

    Example:
        >>> [round(float(p), 3) for p in nonzero_probability(init_log_alpha((2,), 0.75))]
        [0.75, 0.75]
    """
    check_share(probability, "probability")
    is_shape = isinstance(shape, (tuple, list)) and all(isinstance(n, int) for n in shape)
    check(is_shape, "shape", "a tuple of sizes", repr(shape))
    logit = math.log(probability / (1 - probability))
    return jnp.full(shape, logit + BETA * math.log(-GAMMA / ZETA), jnp.float32)


def _stretched(share: Array) -> Array:
    return jnp.clip(share * (ZETA - GAMMA) + GAMMA, 0.0, 1.0)
