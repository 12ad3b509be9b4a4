r"""Confidence intervals of means and other statistics of a few samples.

Which one serves follows from what was sampled. The mean of a few seeds or texts has Student's
interval. Any other statistic, and a mean of values that are far from normal, is computed again on
samples drawn anew with replacement: the bootstrap. Both are those of SciPy, which has Wilson's for
a share of yes and no: ``binomtest``. Values are taken in float64; masked arrays are refused.

Shapes: ``n`` samples, independent of each other.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy import stats

from mha_book._checks import as_numbers, check, check_share, check_size, check_type

__all__ = ["bootstrap_interval", "mean_interval"]


def mean_interval(values: Any, confidence: float = 0.95) -> tuple[Any, Any]:
    r"""Return the mean over the last axis, and half the width of Student's interval around it.

    $\bar x \pm t\, s / \sqrt n$, with $s$ the standard deviation of the samples and $t$ the point
    of Student's distribution with $n - 1$ degrees of freedom. It holds for samples that are normal,
    and nearly for others.

    Args:
        values: ``(…, n)``, at least two samples.
        confidence: how often the interval contains the mean that was sampled from.

    Returns:
        The mean and the half width, ``(…)`` each.

    References:
        Student, The probable error of a mean, 1908.

    Example:
        >>> mean, half = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> f"{mean:.1f} ± {half:.3f}"
        '3.0 ± 1.963'
    """
    samples = as_numbers(values, "values", "axes (…, n)")
    count = samples.shape[-1] if samples.ndim else 0
    check(count >= 2, "values", "two samples or more along the last axis", samples.shape)
    check_share(confidence, "confidence")
    half = stats.t.ppf((1 + confidence) / 2, count - 1) * stats.sem(samples, axis=-1)
    return samples.mean(-1), half


def bootstrap_interval(
    values: Any,
    rng: np.random.Generator,
    *,
    statistic: Callable[[np.ndarray], Any] = np.mean,
    draws: int = 2000,
    confidence: float = 0.95,
    method: Literal["percentile", "basic", "BCa"] | None = None,
) -> tuple[float, float]:
    """Return where a statistic lies when the samples are drawn anew with replacement.

    Args:
        values: ``(n, …)``, one sample a row: rows are drawn whole.
        rng: draws ``n`` of the samples with replacement, ``draws`` times.
        statistic: from ``n`` samples ``(n, …)`` to a number.
        draws: how often the samples are drawn.
        confidence: the share of the draws that lies inside, as much outside on each side.
        method: ``"percentile"``; ``"BCa"``, which corrects bias and skewness; or ``"basic"``. By
            default BCa below twenty samples, where percentiles are too narrow.

    Returns:
        The lower and the upper end.

    References:
        Efron and Tibshirani, An introduction to the bootstrap, 1993.

    Example:
        >>> low, high = bootstrap_interval([3.0, 3.0, 3.0], np.random.default_rng(0))
        >>> print(low, high)
        3.0 3.0
    """
    check_type(rng, "rng", np.random.Generator, "as numpy.random.default_rng(seed) gives one")
    check_size(draws, "draws")
    check_share(confidence, "confidence")
    methods = None, "percentile", "basic", "BCa"
    check(method in methods, "method", f"one of {', '.join(methods[1:])}", repr(method))
    samples = as_numbers(values, "values", "axes (n, …)")
    count = len(samples) if samples.ndim else 0
    check(count >= 2, "values", "two samples or more along the first axis", samples.shape)
    if (samples == samples[0]).all():  # BCa has no answer
        whole = float(statistic(samples))
        return whole, whole
    found = stats.bootstrap(
        (np.arange(count),),
        lambda rows: statistic(samples[rows]),
        n_resamples=draws,
        vectorized=False,
        confidence_level=confidence,
        method=method or ("BCa" if count < 20 else "percentile"),
        rng=rng,
    ).confidence_interval
    return float(found.low), float(found.high)
