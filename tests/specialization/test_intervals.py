"""Intervals against numbers by hand, against scipy, and what they promise: how often they hold."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from mha_book.specialization.intervals import (
    bootstrap_interval,
    mean_interval,
    wilson_interval,
)


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


def test_student_along_the_last_axis_is_that_of_scipy():
    values = np.random.default_rng(0).normal(size=(3, 2, 7))
    mean, half = mean_interval(values, 0.9)
    assert mean.shape == half.shape == (3, 2)
    for place in np.ndindex(3, 2):
        wanted = stats.ttest_1samp(values[place], 0.0).confidence_interval(0.9)
        np.testing.assert_allclose(
            (mean[place] - half[place], mean[place] + half[place]), (wanted.low, wanted.high)
        )


def test_wilson_by_hand():
    # z = 1.96: (0.5 + 0.19208 ± 1.96 sqrt(0.025 + 0.0096)) / 1.38415
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(0, 10)[0] >= 0
    assert wilson_interval(10, 10)[1] <= 1
    for successes, trials, confidence in ((3, 7, 0.9), (1, 16, 0.99), (16, 16, 0.95)):
        wanted = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
        found = wilson_interval(successes, trials, confidence)
        np.testing.assert_allclose(found, (wanted.low, wanted.high), atol=1e-12)


def test_the_bootstrap_of_two_samples():
    # The mean of two draws from 0 and 1 is 0, 1/2 or 1, with the chances 1/4, 1/2, 1/4.
    rng = np.random.default_rng(0)
    assert bootstrap_interval([0.0, 1.0], rng) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], rng, confidence=0.4) == (0.5, 0.5)


def test_the_bootstrap_of_a_mean_is_near_that_of_the_normal_distribution():
    values = np.arange(20.0)
    low, high = bootstrap_interval(values, np.random.default_rng(0), draws=10_000)
    spread = 1.96 * values.std() / np.sqrt(20)
    assert (low, high) == pytest.approx((9.5 - spread, 9.5 + spread), abs=0.2)
    again = bootstrap_interval(values, np.random.default_rng(0), draws=10_000)
    assert (low, high) == again  # the generator alone decides


def test_rows_are_drawn_whole():
    """A ratio of sums: a sample is a row of a numerator and a denominator."""
    rows = np.stack([3.0 * np.arange(1, 8), np.arange(1.0, 8)], -1)
    found = bootstrap_interval(
        rows, np.random.default_rng(1), statistic=lambda drawn: np.divide(*drawn.sum(0))
    )
    np.testing.assert_allclose(found, (3.0, 3.0))


def test_they_hold_as_often_as_they_say():
    rng = np.random.default_rng(2)
    mean, half = mean_interval(rng.normal(size=(4000, 5)), 0.8)
    assert np.mean(abs(mean) < half) == pytest.approx(0.8, abs=0.02)
    inside = [
        low <= 0.3 <= high
        for low, high in (wilson_interval(int(k), 40, 0.8) for k in rng.binomial(40, 0.3, 2000))
    ]
    assert np.mean(inside) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([1.0]), "values: expected two samples or more"),
        (lambda: mean_interval(3.0), "values: expected two samples or more"),
        (lambda: mean_interval([1.0, 2.0], 95.0), "confidence: expected a number between 0 and 1"),
        (lambda: wilson_interval(3, 2), "successes: expected 0 to 2"),
        (lambda: wilson_interval(0, 0), "successes: expected 0 to 0, of 1 or more"),
        (lambda: bootstrap_interval([], np.random.default_rng(0)), "values: expected one sample"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_package_does_not_load_it_unasked():
    code = "import sys, mha_book; assert 'mha_book.specialization.intervals' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
