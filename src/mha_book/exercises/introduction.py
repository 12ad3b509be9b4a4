"""Checks of the exercises of the introduction."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


def _example() -> np.ndarray:
    """Return weights of shape (5, 5) whose rows sum to 1 and whose columns do not."""
    weights = np.random.default_rng(7).uniform(size=(5, 5)) ** 3
    shares: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return shares


@exercise("share-on")
def _share_on(attempt: Attempt) -> Iterator[str | None]:
    weights = _example()
    column = weights[:, 3]
    hints = {
        "that is the mean over a row: queries stand in rows, keys in columns": weights[3].mean(),
        "that is the sum over the positions, not their mean": column.sum(),
    }
    yield judge(attempt(weights, 3), float(column.mean()), hints, "on an example: ")


@exercise("mean-distance")
def _mean_distance(attempt: Attempt) -> Iterator[str | None]:
    weights = _example()
    i = np.arange(len(weights))
    signed = i[None, :] - i[:, None]
    want = float((weights * abs(signed)).sum(axis=-1).mean())
    cancelled = (weights * signed).sum(axis=-1).mean()
    cancel = "distances before and after the position cancel: take |i - j|"
    hints = {
        cancel: cancelled,
        f"{cancel}, not j - i": -cancelled,
        "that is the sum over the positions, not their mean": want * len(weights),
    }
    yield judge(attempt(weights), want, hints, "on an example: ")


@exercise("previous-share")
def _previous_share(attempt: Attempt) -> Iterator[str | None]:
    got = np.asarray(attempt("Rivers carry sand to the sea."))
    if got.shape != ():
        yield f"expected one number; got shape {got.shape}"
    if not 0.0 <= got <= 1.0:
        yield f"a share lies between 0 and 1; got {float(got):.3f}"
    if got < 0.9:  # the head looks back on every sentence; its neighbours do not
        yield f"on 'Rivers carry sand to the sea.' the share is above 0.9; got {float(got):.3f}"
