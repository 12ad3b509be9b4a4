r"""The softmax of a row whose scores come in pieces, and the average it gives.

Of the scores $S^j$ seen so far, with values $V^{jc}$, three things are kept: the largest score $m$,
the sum $\ell = \sum_j e^{S^j - m}$ and the sum $o^c = \sum_j e^{S^j - m} V^{jc}$. At the end
$o^c / \ell$ is the attention output and $m + \log \ell$ the log-sum-exp, whatever the pieces were.

Shapes: ``r`` rows, ``u`` scores of a piece, ``C`` width of the values.

References:
    Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mha_book._checks import (
    check,
    check_axes,
    check_float_dtype,
    check_floating,
    check_shape,
    check_size,
    check_type,
)

__all__ = ["SoftmaxState", "finalize", "init", "merge", "update"]


class SoftmaxState(NamedTuple):
    """What is known of the rows after some of their scores.

    Args:
        maximum: ``(…, r, 1)``, the largest score; -inf before the first that is not.
        total: ``(…, r, 1)``, the sum of the exponentials of the scores less the maximum.
        output: ``(…, r, C)``, the sum of the values times these exponentials.
    """

    maximum: Array
    total: Array
    output: Array


def init(shape: tuple[int, ...], dtype: Any) -> SoftmaxState:
    """Return what is known before the first piece; ``shape`` is ``(…, r, C)``, that of the output.

    Example:
        >>> init((1, 2), jnp.float32).maximum.tolist()
        [[-inf]]
    """
    check(isinstance(shape, tuple) and len(shape) >= 2, "shape", "a tuple (…, r, C)", repr(shape))
    for size in shape:
        check_size(size, "shape", 0, "lengths of 0 or more")
    check_float_dtype(dtype)
    return empty_state(shape, dtype)


def empty_state(shape: tuple[int, ...], dtype: Any) -> SoftmaxState:
    """Return what :func:`init` does, without its checks."""
    column = (*shape[:-1], 1)
    return SoftmaxState(
        jnp.full(column, -jnp.inf, dtype), jnp.zeros(column, dtype), jnp.zeros(shape, dtype)
    )


def update(
    known: SoftmaxState, scores: Float[Array, "*batch r u"], values: Float[Array, "*batch u C"]
) -> SoftmaxState:
    """Return what is known after one more piece.

    Args:
        known: what was known before.
        scores: ``(…, r, u)``; -inf hides a key from a row. A piece may be empty, ``u = 0``.
        values: ``(…, u, C)``, or ``(u, C)`` for all batch entries.

    Returns:
        The sums over all pieces; after an empty one what was known.

    Example:
        >>> known = init((1, 1), jnp.float32)
        >>> for score, value in ((0.0, 1.0), (0.0, 3.0)):
        ...     known = update(known, jnp.array([[score]]), jnp.array([[value]]))
        >>> finalize(known)[0].tolist()  # two equal scores: the mean
        [[2.0]]
    """
    sizes = _check_state(known, "known")
    check_axes(scores, "scores", ("*batch", "r", "u"), sizes, Float, known.output, "known")
    of_all = ("u", "C") if np.ndim(values) == 2 else ("*batch", "u", "C")
    check_axes(values, "values", of_all, sizes, Float, known.output, "known")
    return known if scores.shape[-1] == 0 else updated(known, scores, values)


def updated(known: SoftmaxState, scores: Array, values: Array) -> SoftmaxState:
    """Return what :func:`update` does, of a piece that is not empty, without its checks."""
    maximum = jnp.maximum(known.maximum, jnp.max(scores, axis=-1, keepdims=True))
    shift = _finite(maximum)
    exponentials = jnp.exp(scores - shift)
    fade = jnp.exp(known.maximum - shift)
    total = fade * known.total + jnp.sum(exponentials, axis=-1, keepdims=True)
    output = fade * known.output + jnp.matmul(exponentials, values)
    return SoftmaxState(maximum, total, output)


def merge(one: SoftmaxState, other: SoftmaxState) -> SoftmaxState:
    """Return what is known of all scores from what is known of two parts of them.

    The order does not matter, nor how more than two are joined.

    Example:
        >>> a, b = (
        ...     update(init((1, 1), jnp.float32), jnp.zeros((1, 1)), jnp.full((1, 1), x))
        ...     for x in (1.0, 3.0)
        ... )
        >>> finalize(merge(a, b))[0].tolist()
        [[2.0]]
    """
    _check_state(one, "one")
    _check_state(other, "other")
    check_shape(other.output, "other", one.output.shape, "the shape of one,")
    check_floating(other.output, "other", one.output, "one")
    maximum = jnp.maximum(one.maximum, other.maximum)
    fade_one, fade_other = (jnp.exp(x.maximum - _finite(maximum)) for x in (one, other))
    return SoftmaxState(
        maximum,
        fade_one * one.total + fade_other * other.total,
        fade_one * one.output + fade_other * other.output,
    )


def finalize(known: SoftmaxState) -> tuple[Array, Array]:
    """Return the output ``(…, r, C)`` and the log-sum-exp ``(…, r)`` after all scores.

    They are zeros and -inf for a row all of whose scores were -inf.

    Example:
        >>> output, lse = finalize(init((1, 2), jnp.float32))
        >>> output.tolist(), lse.tolist()
        ([[0.0, 0.0]], [-inf])
    """
    _check_state(known, "known")
    return finalized(known)


def finalized(known: SoftmaxState) -> tuple[Array, Array]:
    """Return what :func:`finalize` does, without its checks."""
    empty = known.total == 0.0
    total = jnp.where(empty, jnp.ones((), known.total.dtype), known.total)
    lse = jnp.where(empty, -jnp.inf, known.maximum + jnp.log(total))
    return known.output / total, lse[..., 0]


def _finite(maximum: Array) -> Array:
    """Replace -inf, the maximum of no score, by 0: -inf less -inf is not a number."""
    return jnp.where(jnp.isneginf(maximum), jnp.zeros((), maximum.dtype), maximum)


def _check_state(state: Any, name: str) -> dict[str, Any]:
    """Raise unless the sums fit together; return the sizes of their axes."""
    check_type(state, name, SoftmaxState, "as init makes one")
    sizes: dict[str, Any] = {}
    for part, width in (("output", "C"), ("maximum", "1"), ("total", "1")):
        array = getattr(state, part)
        check_axes(array, f"{name}.{part}", ("*batch", "r", width), sizes, Float, state.output)
    return sizes
