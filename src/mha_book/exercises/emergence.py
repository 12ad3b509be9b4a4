"""Checks of the exercises of the chapter on how heads come to their roles."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("even-score")
def _even_score(attempt: Attempt) -> Iterator[str | None]:
    for positions in ([5, 8, 11, 14, 17, 20], [1], [3, 7]):
        average = "average the shares, not the positions: 1/x of a mean is not the mean of 1/x"
        hints = {
            "a query sees itself too: at position i it sees i + 1 tokens": mean_of(positions, 0),
            average: 1 / (float(np.mean(positions)) + 1),
        }
        want = mean_of(positions, 1)
        yield judge(attempt(list(positions)), want, hints, f"for positions {positions} ")


def mean_of(positions: list[int], more: int) -> float:
    """The mean of one over each position and ``more``."""
    return float(np.mean([1 / (i + more) for i in positions]))


@exercise("dimensions")
def _dimensions(attempt: Attempt) -> Iterator[str | None]:
    cases: tuple[tuple[list[float], float, int], ...] = (
        ([3.0, 1.0, 1.0, 1.0], 0.9, 3),
        ([1.0, 2.0, 2.0, 4.0], 0.6, 1),
        ([2.0, 2.0], 0.5, 1),
        ([10.0, 1.0, 0.1], 0.999, 2),
        ([1.0] * 7, 0.99, 7),
    )

    def needed(energy: np.ndarray, share: float) -> int:
        return int((np.cumsum(energy) / energy.sum() < share - 1e-9).sum()) + 1

    for singular, share, want in cases:
        hints = {
            "the energy is the square of a singular value": needed(np.sort(singular)[::-1], share),
            "the largest come first, whatever the order given": needed(np.square(singular), share),
        }
        where = f"for singular values {singular} and a share of {share} "
        yield judge(attempt(np.array(singular), share), want, hints, where)


@exercise("two-wide")
def _two_wide(attempt: Attempt) -> Iterator[str | None]:
    for n in (2, 3, 8, 37, 100):
        got = attempt(n)
        where = f"for n = {n}"
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            yield f"{where} expected a pair, queries and keys; got {type(got).__name__}"
        query, key = (np.asarray(x, np.float64) for x in got)
        for x, name in ((query, "queries"), (key, "keys")):
            if x.shape != (n, 2):
                yield f"{where} expected {name} of shape ({n}, 2); got {x.shape}"
            if not np.isfinite(x).all():
                yield f"{where} the {name} are not finite"
        scores = query @ key.T / np.sqrt(2)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        own = np.diag(weights / weights.sum(1, keepdims=True))
        best = scores.argmax(1)
        if (best != np.arange(n)).any():
            i = int(np.argmax(best != np.arange(n)))
            yield (
                f"{where} query {i} prefers key {best[i]}: keys of one length, all around a circle?"
            )
        if own.min() < 0.9:
            yield (
                f"{where} every query prefers its own key, with {own.min():.2f} of the weight at "
                "least: make the queries longer, the more keys the longer"
            )


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
