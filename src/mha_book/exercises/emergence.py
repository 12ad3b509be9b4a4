"""Checks of the exercises of the chapter on the induction transition."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("even-score")
def _even_score(attempt: Attempt) -> Iterator[str | None]:
    for positions in ([5, 8, 11, 14, 17, 20], [1], [3, 7]):
        average = "average the shares, not the positions: 1/x of a mean is not the mean of 1/x"
        itself, want = (float(np.mean([1 / (i + more) for i in positions])) for more in (0, 1))
        hints = {
            "a query sees itself too: at position i it sees i + 1 tokens": itself,
            average: 1 / (float(np.mean(positions)) + 1),
        }
        yield judge(attempt(list(positions)), want, hints, f"for positions {positions} ")


@exercise("second-guess")
def _second_guess(attempt: Attempt) -> Iterator[str | None]:
    for periods in ([8, 24], [9], [8, 16, 20]):
        hints = {"average the losses, not the periods": float(np.log(np.mean(periods)))}
        want = float(np.mean(np.log(periods)))
        yield judge(attempt(list(periods)), want, hints, f"for periods {periods} ")


@exercise("pairs-seen")
def _pairs_seen(attempt: Attempt) -> Iterator[str | None]:
    for tokens in ([1, 2, 3, 1, 2], [5, 5, 5], [4, 7, 7, 4, 4, 7], [2]):
        pairs = [tuple(tokens[n : n + 2]) for n in range(len(tokens) - 1)]
        want = [False, *(pair in pairs[:n] for n, pair in enumerate(pairs))]
        hints = {"look for the pair, in its order": [x in tokens[:n] for n, x in enumerate(tokens)]}
        yield judge(attempt(list(tokens)), want, hints, f"for {tokens}: ")
