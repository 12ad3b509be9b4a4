"""Checks of the exercises of the introduction."""

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _example() -> np.ndarray:
    """Return weights of shape (5, 5) whose rows sum to 1 and whose columns do not."""
    weights = np.random.default_rng(7).uniform(size=(5, 5)) ** 3
    return weights / weights.sum(axis=-1, keepdims=True)


def _share_on(attempt: Attempt) -> str | None:
    weights = _example()
    got = np.asarray(attempt(weights, 3))
    if got.shape != ():
        return f"expected one number; got shape {got.shape}"
    if np.isclose(got, weights[3].mean()):
        return "that is the mean over a row: queries stand in rows, keys in columns"
    if np.isclose(got, weights[:, 3].sum()):
        return "that is the sum over the positions, not their mean"
    if not np.isclose(got, weights[:, 3].mean()):
        return f"on an example the share is {weights[:, 3].mean():.3f}; got {float(got):.3f}"
    return None


def _mean_distance(attempt: Attempt) -> str | None:
    weights = _example()
    i = np.arange(len(weights))
    signed = i[None, :] - i[:, None]
    want = (weights * abs(signed)).sum(axis=-1).mean()
    got = np.asarray(attempt(weights))
    if got.shape != ():
        return f"expected one number; got shape {got.shape}"
    if np.isclose(abs(got), abs((weights * signed).sum(axis=-1).mean())):
        return "distances before and after the position cancel: take |i - j|"
    if np.isclose(got, want * len(weights)):
        return "that is the sum over the positions, not their mean"
    if not np.isclose(got, want):
        return f"on an example the mean distance is {want:.3f}; got {float(got):.3f}"
    return None


def _previous_share(attempt: Attempt) -> str | None:
    got = np.asarray(attempt("Rivers carry sand to the sea."))
    if got.shape != ():
        return f"expected one number; got shape {got.shape}"
    if not 0.0 <= got <= 1.0:
        return f"a share lies between 0 and 1; got {float(got):.3f}"
    if got < 0.9:  # the head looks back on every sentence; its neighbours do not
        return f"on 'Rivers carry sand to the sea.' the share is above 0.9; got {float(got):.3f}"
    return None


CHECKS: dict[str, Check] = {
    "share-on": _share_on,
    "mean-distance": _mean_distance,
    "previous-share": _previous_share,
}
"""The checks of this chapter's exercises, by name."""
