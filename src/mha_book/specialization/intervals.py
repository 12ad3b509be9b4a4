r"""Confidence intervals of means, shares and other statistics of a few samples.

Which one serves follows from what was sampled. The mean of a few seeds or texts has Student's
interval, a share of yes and no that of Wilson. Any other statistic, and a mean of values that are
far from normal, is computed again on samples drawn anew with replacement: the bootstrap.

Shapes: ``n`` samples, independent of each other.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from mha_book._checks import check, check_share, check_size, check_type

__all__ = ["bootstrap_interval", "mean_interval", "wilson_interval"]


Means = np.floating[Any] | npt.NDArray[np.floating[Any]]


@overload
def mean_interval(
    values: Sequence[float], confidence: float = 0.95
) -> tuple[np.floating[Any], np.floating[Any]]: ...


@overload
def mean_interval(values: npt.ArrayLike, confidence: float = 0.95) -> tuple[Means, Means]: ...


def mean_interval(values: Any, confidence: float = 0.95) -> tuple[Means, Means]:
    r"""Return the mean over the last axis, and half the width of Student's interval around it.

    $\bar x \pm t\, s / \sqrt n$, with $s$ the standard deviation of the samples and $t$ the point
    of Student's distribution with $n - 1$ degrees of freedom. It holds for samples that are normal,
    and nearly for others.

    Args:
        values: ``(…, n)``, at least two samples.
        confidence: how often the interval contains the mean that was sampled from.

    Returns:
        The mean and the half width, ``(…)`` each.

    Raises:
        ValueError: there are fewer than two samples, or ``confidence`` is not between 0 and 1.

    References:
        Student, The probable error of a mean, 1908.

    Example:
        >>> mean, half = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> f"{mean:.1f} ± {half:.3f}"
        '3.0 ± 1.963'
    """
    samples = np.asarray(values)
    count = samples.shape[-1] if samples.ndim else 0
    check(count >= 2, "values", "two samples or more along the last axis", samples.shape)
    t = stdtrit(count - 1, _upper(confidence))
    return samples.mean(-1), t * samples.std(-1, ddof=1) / np.sqrt(count)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    r"""Return the interval of Wilson around a share.

    With $\hat p$ the share of $n$ trials and $z$ the point of the normal distribution, it holds
    the $p$ for which $|\hat p - p| \le z \sqrt{p (1 - p) / n}$. So it stays between 0 and 1,
    also where no trial succeeded, or every one.

    Args:
        successes: how many of the trials succeeded.
        trials: how many there were, at least 1.
        confidence: how often the interval contains the share that was sampled from.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: ``successes`` is not from 0 to ``trials``, or ``confidence`` not between 0
            and 1.

    References:
        Wilson, Probable inference, the law of succession, and statistical inference, 1927.

    Example:
        >>> low, high = wilson_interval(5, 10)
        >>> f"{low:.4f} to {high:.4f}"
        '0.2366 to 0.7634'
    """
    is_count = all(isinstance(x, (int, np.integer)) for x in (successes, trials))
    check(is_count, "successes", "integers, and trials too", f"{successes!r}, {trials!r}")
    check(0 <= successes <= trials > 0, "successes", f"0 to {trials}, of 1 or more", successes)
    z, share = float(ndtri(_upper(confidence))), successes / trials
    scale = 1 + z**2 / trials
    middle = (share + z**2 / (2 * trials)) / scale
    half = z * np.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / scale
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def bootstrap_interval(
    values: Any,
    rng: np.random.Generator,
    *,
    statistic: Callable[[np.ndarray], Any] = np.mean,
    draws: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Return where a statistic lies when the samples are drawn anew: the percentile bootstrap.

    Args:
        values: ``(n, …)``, one sample a row.
        rng: draws ``n`` of the samples with replacement, ``draws`` times.
        statistic: from ``n`` samples ``(n, …)`` to a number.
        draws: how often the samples are drawn.
        confidence: the share of the draws that lies inside, as much outside on each side.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: there is no sample, or ``confidence`` is not between 0 and 1.

    References:
        Efron, Bootstrap methods: another look at the jackknife, 1979.

    Example:
        >>> low, high = bootstrap_interval([3.0, 3.0, 3.0], np.random.default_rng(0))
        >>> print(low, high)
        3.0 3.0
    """
    check_type(rng, "rng", np.random.Generator, "as numpy.random.default_rng(seed) gives one")
    check_size(draws, "draws")
    samples = np.asarray(values)
    count = len(samples) if samples.ndim else 0
    check(count > 0, "values", "one sample or more along the first axis", samples.shape)
    upper = _upper(confidence)
    chosen = rng.integers(0, count, (draws, count))
    drawn = [statistic(samples[rows]) for rows in chosen]
    low, high = np.quantile(drawn, [1 - upper, upper])
    return float(low), float(high)


def _upper(confidence: float) -> float:
    """Return the probability below the upper end of an interval with as much on both sides."""
    check_share(confidence, "confidence")
    return (1 + confidence) / 2
