r"""Dropout: random zeros in training, at the three places where an attention layer can have them.

Everything is a product with random factors of mean 1: $x \circ f$. Keys are explicit, nothing is
dropped unless a rate is given, and the factors of a layer are drawn by one function, so that a
gradient written by hand can use the same ones.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float

from mha_book._checks import RngKey, as_key, check, check_float_dtype, check_floating

__all__ = ["Dropout", "dropout"]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Dropout:
    """The rates of dropout at its three places in a layer, each in [0, 1); off by default.

    Args:
        weights: on the attention weights, after the softmax, for each pair of positions.
        heads: on the outputs of the heads, before the output projection.
        output: on the output, after the projection and its bias.
    """

    weights: float = 0.0
    heads: float = 0.0
    output: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            _check_rate(rate, f"dropout.{field.name}")


class DropoutFactors(NamedTuple):
    """What the dropout of one layer multiplies by; None at a place where it is off."""

    weights: Array | None = None  # (…, N, T, S)
    heads: Array | None = None  # (…, N, T, C)
    output: Array | None = None  # (…, T, D)


def dropout_factors(
    rng_key: RngKey, rate: float, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> Float[Array, "..."]:
    r"""Draw what dropout multiplies by: 0 with probability ``rate``, else $1 / (1 - \text{rate})$.

    The mean of a factor is 1, so that nothing has to be rescaled when dropout is off. The gradient
    of a product with these factors is the product of the gradient with the same factors.

    The entries are independent; the same key gives the same zeros in every ``dtype``.
    """
    _check_rate(rate, "rate")
    rate = float(rate)
    check_float_dtype(dtype)
    most = float(jnp.finfo(dtype).max)
    what = f"a rate whose factor 1 / (1 - rate) is at most {most:g}, as {jnp.dtype(dtype)} holds"
    check(most * (1.0 - rate) >= 1.0, "rate", what, repr(rate))
    kept = jax.random.uniform(as_key(rng_key), shape, jnp.float32) >= rate
    return kept.astype(dtype) * jnp.asarray(1.0 / (1.0 - rate), dtype)


def dropout(
    x: Float[Array, "..."], rate: float, rng_key: RngKey | None = None
) -> Float[Array, "..."]:
    r"""Return $x \circ f$ with the random factors $f$ of :func:`dropout_factors`.

    Args:
        x: any shape.
        rate: probability in [0, 1) that an entry becomes 0; at 0 the result is ``x`` itself.
        rng_key: PRNG key, or an integer seed; needed where ``rate`` is not 0.

    Returns:
        The same shape; its mean over keys is ``x``, and the variance of an entry
        $x^2\,\text{rate} / (1 - \text{rate})$.

    References:
        Srivastava et al., Dropout: a simple way to prevent neural networks from overfitting, 2014.

    Example:
        >>> sorted(set(dropout(jnp.ones(100), 0.5, jax.random.key(0)).tolist()))
        [0.0, 2.0]
    """
    check_floating(x, "x")
    _check_rate(rate, "rate")
    if rate == 0.0:
        return x
    return x * dropout_factors(_present(rng_key, f"rate {rate}"), rate, x.shape, x.dtype)


def draw_factors(
    dropout: Dropout | None,
    rng_key: RngKey | None,
    scores_shape: tuple[int, ...],
    value_dim: int,
    d_model: int,
    dtype: DTypeLike = jnp.float32,
) -> DropoutFactors:
    """Draw the factors of one layer: the key is split in three, one for each place."""
    is_rates = dropout is None or isinstance(dropout, Dropout)
    hint = "a rate for one of its places: Dropout(weights=0.1)"
    check(is_rates, "dropout", hint, repr(dropout))
    if dropout is None or dropout == Dropout():
        return DropoutFactors()
    *batch, _, length, _ = scores_shape
    shapes = (scores_shape, (*scores_shape[:-1], value_dim), (*batch, length, d_model))
    rates = (dropout.weights, dropout.heads, dropout.output)
    keys = jax.random.split(_present(rng_key, str(dropout)), 3)
    return DropoutFactors(
        *(
            dropout_factors(key, rate, shape, dtype) if rate else None
            for key, rate, shape in zip(keys, rates, shapes, strict=True)
        )
    )


def _check_rate(rate: float, name: str) -> None:
    is_number = isinstance(rate, int | float | np.integer | np.floating)
    fits = is_number and not isinstance(rate, bool) and 0.0 <= rate < 1.0
    check(fits, name, "a probability in [0, 1)", repr(rate))


def _present(rng_key: RngKey | None, need: str) -> Array:
    """Return the key, or raise if there is none."""
    if rng_key is None:
        raise ValueError(f"rng_key: expected a PRNG key, since there is {need}; got None")
    return as_key(rng_key)
