"""Checks of the exercises of the chapter on attention sinks."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("denominator")
def _denominator(attempt: Attempt) -> Iterator[str | None]:
    cases = (
        (np.array([[0.0, 0.0], [2.0, -1.0]]), 0.0),
        (np.array([[1.0, 3.0, -2.0]]), 2.5),
        (np.array([[900.0, 899.0]]), 901.0),
    )
    for scores, logit in cases:
        got = np.asarray(attempt(scores, logit), np.float64)
        if got.shape == (scores.shape[0], scores.shape[1] + 1):
            yield "that has a column for the sink: return the weights of the keys alone"
        if got.shape != scores.shape:
            yield f"expected one weight for each score, {scores.shape}; got {got.shape}"
        if not np.isfinite(got).all():
            yield "large scores overflow: subtract the largest of scores and logit first"
        column = np.full((len(scores), 1), logit)
        joined = np.concatenate((scores, column), axis=1)
        want = np.exp(joined - joined.max(1, keepdims=True))
        want = want / want.sum(1, keepdims=True)
        if np.allclose(got, want[:, :-1]):
            continue
        if np.allclose(got.sum(1), 1):
            yield "those sum to 1, as without a sink: its share has to be missing"
        yield (
            f"for scores {scores[0].tolist()} and logit {logit:g} expected {want[0, 0]:.3f} first"
        )


@exercise("visible")
def _visible(attempt: Attempt) -> Iterator[str | None]:
    for length, window, kept in ((6, 2, 1), (7, 3, 2), (5, 5, 0)):
        got = np.asarray(attempt(length, window, kept))
        if got.shape != (length, length) or got.dtype != bool:
            yield f"expected booleans ({length}, {length}); got {got.dtype} {got.shape}"
        place = np.arange(length)
        back = place[:, None] - place
        want = (back >= 0) & ((back < window) | (place < kept))
        if (got == want).all():
            continue
        if got[back < 0].any():
            yield "a query sees a key that comes after it"
        if (got == ((back >= 0) & ((back <= window) | (place < kept)))).all():
            yield "one key too many: the query's own key is one of the window"
        if not got[length - 1, :kept].all():
            yield "the last query does not see the first positions, which are kept"
        i, j = np.argwhere(got != want)[0]
        yield f"with a window of {window} and {kept} kept, query {i} and key {j} are wrong"


@exercise("cached")
def _cached(attempt: Attempt) -> Iterator[str | None]:
    cases = ((100, 8, 2, 10, 1), (7, 4, 1, 16, 1), (12, 3, 0, 10, 4), (50, 3, 3, 10, 1))
    for length, heads, whole, window, kept in cases:
        few, rest = min(length, window + kept), heads - whole
        hints = {
            "the first positions are missing": whole * length + rest * min(length, window),
            "no head can keep more keys than there are tokens": whole * length
            + rest * (window + kept),
        }
        got = attempt(length, heads, whole, window, kept)
        where = (
            f"for {length} tokens, {whole} of {heads} heads whole, window {window}, {kept} kept "
        )
        yield judge(got, whole * length + rest * few, hints, where)
