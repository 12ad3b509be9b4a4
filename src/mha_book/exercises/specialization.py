"""Checks of the exercises of the chapter on what heads learn."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("baseline")
def _baseline(attempt: Attempt) -> Iterator[str | None]:
    for length in (2, 5, 12):
        shares = [1 / (i + 1) for i in range(length)]
        first = "the first row sees itself alone: it has no previous token, and does not count"
        hints = {
            first: float(np.mean(shares)),
            "row i of a causal head sees i + 1 keys, not all of them": 1 / length,
            "row i sees itself too": float(np.mean(shares[:-1])),
        }
        want = float(np.mean(shares[1:]))
        yield judge(attempt(length), want, hints, f"for {length} tokens: ")


@exercise("induction-targets")
def _induction(attempt: Attempt) -> Iterator[str | None]:
    cases: tuple[tuple[list[int], int, set[int]], ...] = (
        ([7, 8, 9, 7], 3, {1}),
        ([7, 8, 9, 7, 8], 4, {2}),
        ([7, 8, 7, 9, 7], 4, {1, 3}),
        ([5, 5, 5], 2, {1, 2}),
        ([1, 2, 3], 2, set()),
    )
    for tokens, query, want in cases:
        same = {j for j in range(query) if tokens[j] == tokens[query]}
        hints = {
            "these are the earlier occurrences; the target is what follows each": same,
            "these stand before the earlier occurrences, not after": {j - 1 for j in same if j},
            "the query's own successor is not visible, and no target": want | {query + 1},
        }
        got = {int(j) for j in attempt(list(tokens), query)}
        yield judge(got, want, hints, f"for tokens {tokens} and query {query} ")


@exercise("excess")
def _kind(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    for measured, null in ((rng.uniform(size=(3, 5)), 0.25), (np.array([[0.1, 0.62]]), 0.2)):
        divide = "this is the difference; divide by what a pure head would have, 1 - null"
        hints = {
            divide: measured - null,
            "this is the ratio, which goes up to 1 / null and not to 1": measured / null,
        }
        want = (measured - null) / (1 - null)
        where = f"for {measured[0, 0]:.3f} over a null of {null} and others "
        yield judge(attempt(measured, null), want, hints, where)
