"""Checks of the exercises of the chapter on attention sinks."""

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _denominator(attempt: Attempt) -> str | None:
    cases = (
        (np.array([[0.0, 0.0], [2.0, -1.0]]), 0.0),
        (np.array([[1.0, 3.0, -2.0]]), 2.5),
        (np.array([[900.0, 899.0]]), 901.0),
    )
    for scores, logit in cases:
        got = np.asarray(attempt(scores, logit), np.float64)
        if got.shape == (scores.shape[0], scores.shape[1] + 1):
            return "that has a column for the sink: return the weights of the keys alone"
        if got.shape != scores.shape:
            return f"expected one weight for each score, {scores.shape}; got {got.shape}"
        if not np.isfinite(got).all():
            return "large scores overflow: subtract the largest of scores and logit first"
        column = np.full((len(scores), 1), logit)
        joined = np.concatenate((scores, column), axis=1)
        want = np.exp(joined - joined.max(1, keepdims=True))
        want = want / want.sum(1, keepdims=True)
        if np.allclose(got, want[:, :-1]):
            continue
        if np.allclose(got.sum(1), 1):
            return "those sum to 1, as without a sink: its share has to be missing"
        return (
            f"for scores {scores[0].tolist()} and logit {logit:g} expected {want[0, 0]:.3f} first"
        )
    return None


def _visible(attempt: Attempt) -> str | None:
    for length, window, kept in ((6, 2, 1), (7, 3, 2), (5, 5, 0)):
        got = np.asarray(attempt(length, window, kept))
        if got.shape != (length, length) or got.dtype != bool:
            return f"expected booleans ({length}, {length}); got {got.dtype} {got.shape}"
        place = np.arange(length)
        back = place[:, None] - place
        want = (back >= 0) & ((back < window) | (place < kept))
        if (got == want).all():
            continue
        if got[back < 0].any():
            return "a query sees a key that comes after it"
        if (got == ((back >= 0) & ((back <= window) | (place < kept)))).all():
            return "one key too many: the query's own key is one of the window"
        if not got[length - 1, :kept].all():
            return "the last query does not see the first positions, which are kept"
        i, j = np.argwhere(got != want)[0]
        return f"with a window of {window} and {kept} kept, query {i} and key {j} are wrong"
    return None


def _cached(attempt: Attempt) -> str | None:
    cases = ((100, 8, 2, 10, 1), (7, 4, 1, 16, 1), (12, 3, 0, 10, 4), (50, 3, 3, 10, 1))
    for length, heads, whole, window, kept in cases:
        got = attempt(length, heads, whole, window, kept)
        few = min(length, window + kept)
        if got == whole * length + (heads - whole) * few:
            continue
        where = f"for {length} tokens, {whole} of {heads} heads whole, window {window}, {kept} kept"
        if length < window + kept:
            return f"{where} no head can keep more keys than there are tokens"
        if got == whole * length + (heads - whole) * window:
            return f"{where} the first positions are missing"
        return f"{where} expected {whole * length + (heads - whole) * few}; got {got}"
    return None


CHECKS: dict[str, Check] = {
    "denominator": _denominator,
    "visible": _visible,
    "cached": _cached,
}
"""The checks of this chapter's exercises, by name."""
