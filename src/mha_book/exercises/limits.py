"""Checks of the exercises of the chapter on what heads cannot tell."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise


@exercise("repaired")
def _repaired(attempt: Attempt) -> Iterator[str | None]:
    for direct, fell in ((2.0, 0.5), (1.5, 1.5), (3.0, 0.0)):
        got = attempt(direct, fell)
        if direct != 2 * fell and np.isclose(got, fell / direct):
            yield "that is the share that was not made up for"
        if not np.isclose(got, (direct - fell) / direct):
            yield f"of {direct} only {fell} were lost; which share was not?"


@exercise("interference")
def _interference(attempt: Attempt) -> Iterator[str | None]:
    features = np.random.default_rng(0).normal(size=(7, 3))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    active = [1, 4, 5]
    for wanted in (4, 2):
        others = [one for one in active if one != wanted]
        want = sum(float(features[one] @ features[wanted]) for one in others)
        got = attempt(features.copy(), list(active), wanted)
        if wanted in active and np.isclose(got, want + 1):
            yield "this is the reading itself: take away the strength that is right"
        if not np.isclose(got, want):
            yield f"with {active} active, reading {wanted}: expected {want:.3f}; got {got}"


@exercise("same-output")
def _same_output(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(1)
    for keys in (4, 6):
        values, weights = rng.normal(size=(keys, 2)), rng.dirichlet(np.ones(keys))
        got = np.asarray(attempt(weights.copy(), values.copy()), float)
        if np.allclose(got, weights, atol=1e-6):
            yield "these are the weights that were given"
        if got.min() < -1e-9 or not np.isclose(got.sum(), 1):
            yield "weights are not negative and sum to 1"
        if not np.allclose(got @ values, weights @ values, atol=1e-6):
            yield "the output has changed: which changes of the weights do the values not see?"
