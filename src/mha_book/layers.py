"""What a model needs around attention: normalisation, activation, linear maps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book._checks import accumulator_dtype, check_number, checked_alike

__all__ = ["gelu", "layer_norm", "linear", "rms_norm", "swiglu"]


@checked_alike
def linear(
    x: Float[Array, "*batch D"], weight: Float[Array, "D F"], bias: Float[Array, " F"] | None = None
) -> Float[Array, "*batch F"]:
    r"""Return $x W + b$ for every row $x$.

    Example:
        >>> linear(jnp.ones((1, 2)), jnp.eye(2), jnp.array([0.0, 1.0])).tolist()
        [[1.0, 2.0]]
    """
    y = jnp.matmul(x, weight)
    return y if bias is None else y + jnp.reshape(bias, (1,) * (y.ndim - 1) + bias.shape)


@checked_alike
def layer_norm(
    x: Float[Array, "*batch D"],
    weight: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float = 1e-5,
) -> Float[Array, "*batch D"]:
    r"""Return $w (x - \bar x) / \sqrt{\operatorname{Var} x + \varepsilon} + b$ over the last axis.

    Args:
        x: ``(…, D)``.
        weight: ``(D,)``.
        bias: ``(D,)``.
        epsilon: added to the variance; 1e-5 as in most models, 1e-12 in BERT-like ones.

    Returns:
        ``(…, D)``; mean and variance are taken in float32 at least.

    References:
        Ba, Kiros and Hinton, Layer Normalization, 2016.

    Example:
        >>> print(layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), jnp.zeros(2), 0.0))
        [-1.  1.]
    """
    check_number(epsilon, "epsilon", "a non-negative number")
    widened, shrink = _widened(x)
    centered = widened - jnp.mean(widened, axis=-1, keepdims=True)
    # Of large entries the mean is rounded: what it left of them is a mean too.
    centered = centered - jnp.mean(centered, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    added = jnp.asarray(epsilon, widened.dtype) * jnp.square(shrink)
    normalized = (centered * jax.lax.rsqrt(variance + added)).astype(x.dtype)
    broadcast = (1,) * (x.ndim - 1) + weight.shape
    return normalized * jnp.reshape(weight, broadcast) + jnp.reshape(bias, broadcast)


def _widened(x: Array) -> tuple[Array, Array]:
    """Return rows in float32 at least, and the factor that those of large entries have.

    The squares of these would overflow; the factor is a power of two, so that nothing is rounded.
    """
    widened = x.astype(accumulator_dtype(x.dtype))
    bits = int(jnp.finfo(widened.dtype).maxexp)  # 128 of float32
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(widened)), axis=-1, keepdims=True, initial=0)
    shrink = jnp.where(largest > 2.0 ** (3 * bits // 8), 2.0 ** -(3 * bits // 4), 1.0)
    shrink = shrink.astype(widened.dtype)
    return widened * shrink, shrink


@checked_alike
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    r"""Return $x\,\Phi(x)$ with $\Phi$ the normal distribution function: the exact form, by erf.

    References:
        Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.

    Example:
        >>> float(gelu(jnp.array(0.0)))
        0.0
    """
    return jax.nn.gelu(x, approximate=False)


@checked_alike
def rms_norm(
    x: Float[Array, "*batch D"], weight: Float[Array, " D"], epsilon: float = 1e-5
) -> Float[Array, "*batch D"]:
    r"""Return $w\, x / \sqrt{\overline{x^2} + \varepsilon}$ over the last axis.

    Args:
        x: ``(…, D)``.
        weight: ``(D,)``.
        epsilon: added to the mean square; Llama-like models use 1e-5.

    Returns:
        ``(…, D)``; the mean square is taken in float32 at least.

    References:
        Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.

    Example:
        >>> rms_norm(jnp.array([5.0, -5.0]), jnp.ones(2), 0.0).tolist()
        [1.0, -1.0]
    """
    check_number(epsilon, "epsilon", "a non-negative number")
    widened, shrink = _widened(x)
    mean_square = jnp.mean(jnp.square(widened), axis=-1, keepdims=True)
    added = jnp.asarray(epsilon, widened.dtype) * jnp.square(shrink)
    normalized = (widened * jax.lax.rsqrt(mean_square + added)).astype(x.dtype)
    return normalized * jnp.reshape(weight, (1,) * (x.ndim - 1) + weight.shape)


@checked_alike
def swiglu(
    x: Float[Array, "*batch D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    w_down: Float[Array, "F D"],
) -> Float[Array, "*batch D"]:
    r"""Return $(\operatorname{silu}(x W_\text{gate}) \circ x W_\text{up})\, W_\text{down}$.

    The weights are ``(D, F)`` twice and ``(F, D)``.

    Returns:
        ``(…, D)``; $\operatorname{silu}(z) = z / (1 + e^{-z})$.

    References:
        Shazeer, GLU Variants Improve Transformer, 2020.

    Example:
        >>> swiglu(jnp.zeros((1, 2)), jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.ones((3, 2))).tolist()
        [[0.0, 0.0]]
    """
    return linear(jax.nn.silu(linear(x, w_gate)) * linear(x, w_up), w_down)
