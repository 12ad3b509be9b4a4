"""Checks of the exercises of the page on heads known by what they do."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("retrieval-score")
def _retrieval(attempt: Attempt) -> Iterator[str | None]:
    weights = np.random.default_rng(0).dirichlet(np.ones(11), 7)
    places = np.where(np.arange(7) < 5, weights.argmax(1), 0)
    want = float((weights.argmax(1) == places).mean())
    mean = "that is the mean weight; count the steps at which it is the largest"
    yield judge(attempt(weights, places), want, {mean: weights[np.arange(7), places].mean()})


@exercise("lowered")
def _lowered(attempt: Attempt) -> Iterator[str | None]:
    logits = np.random.default_rng(1).normal(size=(13, 13)) - np.eye(13)
    own, column = (np.diag(logits)[:, None] > x for x in (logits, logits.T))
    raised = (logits > np.diag(logits)[:, None]).sum(1)
    for lowest in (1, 3):
        hints = {
            "rows are the tokens attended to": (column.sum(1) < lowest).mean(),
            "these are raised most": (raised < lowest).mean(),
        }
        want = float((own.sum(1) < lowest).mean())
        yield judge(attempt(logits, lowest), want, hints, f"among the {lowest} lowest: ")


@exercise("function-vector")
def _vector(attempt: Attempt) -> Iterator[str | None]:
    outputs = np.random.default_rng(2).normal(size=(5, 4, 3))
    chosen = outputs[:, [2, 0]]
    hints = {
        "the stream adds the heads up, so take the sum over them": chosen.mean((0, 1)),
        "take the mean over the prompts": chosen.sum((0, 1)),
    }
    yield judge(attempt(outputs, [2, 0]), chosen.mean(0).sum(0), hints)
