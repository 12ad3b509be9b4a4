"""Intervals against numbers by hand, and what they promise: how often they hold."""

import functools

import numpy as np
import pytest

from mha_book.specialization.intervals import bootstrap_interval, mean_interval


def test_student_by_hand():
    # Mean 3, standard deviation sqrt(2.5); t is 2.776 for four degrees of freedom (any table).
    mean, half = mean_interval([1, 2, 3, 4, 5])
    assert mean == 3
    assert half == pytest.approx(2.7764 * np.sqrt(2.5 / 5), rel=1e-4)
    for count, t in ((10, 2.262), (24, 2.069), (8, 2.365)):
        values = np.arange(float(count))
        wanted = t * values.std(ddof=1) / np.sqrt(count)
        assert mean_interval(values)[1] == pytest.approx(wanted, rel=3e-4)
    assert mean_interval([0.0, 2.0], confidence=0.5)[1] == pytest.approx(1.0)  # t of Cauchy: 1
    mean, half = mean_interval([[0.0, 2.0], [4.0, 4.0]], 0.5)  # along the last axis
    np.testing.assert_allclose((mean, half), ([1, 4], [1, 0]))


def test_the_bootstrap_of_two_samples():
    # The mean of two draws from 0 and 1 is 0, 1/2 or 1, with the chances 1/4, 1/2, 1/4.
    rng = np.random.default_rng(0)
    of_percentiles = functools.partial(bootstrap_interval, [0.0, 1.0], rng, method="percentile")
    assert of_percentiles() == (0.0, 1.0)
    assert of_percentiles(confidence=0.4) == (0.5, 0.5)


def test_rows_are_drawn_whole():
    """A ratio of sums: a sample is a row of a numerator and a denominator."""
    rows = np.stack([3.0 * np.arange(1, 8), np.arange(1.0, 8)], -1)
    found = bootstrap_interval(
        rows,
        np.random.default_rng(1),
        statistic=lambda drawn: np.divide(*drawn.sum(0)),
        method="percentile",
    )
    np.testing.assert_allclose(found, (3.0, 3.0))


def test_few_samples_have_their_own_bootstrap():
    # Of skewed samples BCa reaches farther where the long tail is.
    values = [0.0, 0.1, 0.2, 0.3, 5.0]
    plain, corrected = (
        bootstrap_interval(values, np.random.default_rng(0), method=method)
        for method in ("percentile", "BCa")
    )
    assert corrected[1] > plain[1]
    assert bootstrap_interval(values, np.random.default_rng(0)) == corrected
    many = np.arange(20.0) ** 2
    assert bootstrap_interval(many, np.random.default_rng(0)) == bootstrap_interval(
        many, np.random.default_rng(0), method="percentile"
    )


def test_masked_values_are_not_counted_in_silence(no_type_checks):
    masked = np.ma.masked_array([1.0, 2.0, 900.0], mask=[False, False, True])
    for values in (masked, [masked, masked]):
        with pytest.raises(ValueError, match="values: expected numbers without a mask"):
            mean_interval(values)
        with pytest.raises(ValueError, match="values: expected numbers without a mask"):
            bootstrap_interval(values, np.random.default_rng(0))
    assert mean_interval(masked.compressed())[0] == 1.5
    half = np.full(70_000, 2.0, np.float16)  # their sum is beyond float16
    np.testing.assert_allclose(mean_interval(half), (2.0, 0.0), atol=1e-12)
