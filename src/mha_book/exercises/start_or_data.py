"""Checks of the exercises of the chapter on what decides a head's role, start or data."""

import math
from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("rank-correlation")
def _rank_correlation(attempt: Attempt) -> Iterator[str | None]:
    for early, late in (
        ([0.1, 0.4, 0.2, 0.3], [0.2, 0.9, 0.1, 0.6]),
        ([0.3, 0.2, 0.1], [0.1, 0.2, 0.9]),
        ([0.5, 0.1, 0.2, 0.9, 0.3], [0.1, 0.2, 0.4, 0.8, 0.5]),
    ):
        scores = np.array([early, late])
        hint = "this correlates the scores themselves; put ranks in their place"
        ranks = scores.argsort(1).argsort(1)
        want, plain = (float(np.ravel(np.corrcoef(x))[1]) for x in (ranks, scores))
        hints = {hint: plain}
        yield judge(attempt(early, late), want, hints, f"for {early} and {late} ")


@exercise("paired")
def _paired(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    for size in (16, 5):
        changed, control = (rng.uniform(size=size) < p for p in (0.6, 0.3))
        got = attempt(changed.tolist(), control.tolist())
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            yield f"expected a pair, mean and standard error; got {type(got).__name__}"
        difference = changed * 1.0 - control
        yield judge(got[0], float(difference.mean()), {}, "the mean difference: ")
        spread, apart = difference.std(ddof=1), changed.var(ddof=1) + control.var(ddof=1)
        unrelated = "this takes the two lists as unrelated; take the differences first"
        hints = {
            "divide the squares by n - 1 (ddof=1)": difference.std() / np.sqrt(size),
            "this is the spread of one start; of a mean it is smaller": spread,
            unrelated: np.sqrt(apart / size),
        }
        want = float(spread / np.sqrt(size))
        yield judge(got[1], want, hints, f"the standard error is {want:.4f}: ")


@exercise("by-luck")
def _by_luck(attempt: Attempt) -> Iterator[str | None]:
    for k, n in ((16, 32), (1, 3), (4, 4)):
        each = [math.comb(n, m) * 0.25**m * 0.75 ** (n - m) for m in range(n + 1)]
        hints = {"k itself counts, too": sum(each[k + 1 :]), "this is exactly k": each[k]}
        yield judge(attempt(k, n), sum(each[k:]), hints, f"for {k} of {n}: ")
