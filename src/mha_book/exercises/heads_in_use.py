"""Checks of the exercises of the toolbox."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("controls")
def _controls(attempt: Attempt) -> Iterator[str | None]:
    top = [(3, 1), (3, 4), (5, 0)]
    drawn = set()
    for seed in range(20):
        got = attempt(list(top), 6, np.random.default_rng(seed))
        heads = [(int(layer), int(head)) for layer, head in got]
        if sorted(layer for layer, _ in heads) != [3, 3, 5]:
            yield f"expected as many heads of each layer as there are in {top}; got {heads}"
        if len(set(heads)) != len(heads):
            yield f"a head was drawn twice: {heads}"
        if set(heads) & set(top):
            yield f"controls must not be of the heads they are compared with: {heads}"
        if any(not 0 <= head < 6 for _, head in heads):
            yield f"a layer has heads 0 to 5; got {heads}"
        drawn.add(tuple(sorted(heads)))
    if len(drawn) < 5:
        yield f"20 draws gave {len(drawn)} different sets: draw with the generator"


@exercise("compose")
def _compose(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    size = np.linalg.norm
    for width in (3, 5):
        omega, gamma = rng.normal(size=(2, width, width))
        whole = size(omega) * size(gamma)
        want = float(size(omega @ gamma.T) / whole)
        through = "that is composition through the queries: the keys read the columns of gamma"
        hints = {
            through: size(omega @ gamma) / whole,
            "take the root": want**2,
            "divide by the sizes of both": want * whole,
        }
        yield judge(attempt(omega, gamma), want, hints)


@exercise("route")
def _route(attempt: Attempt) -> Iterator[str | None]:
    for whole, altogether, by_keys, want in (
        (1.0, 0.2, 0.4, 0.75),
        (0.5, 0.1, 0.1, 1.0),
        (0.8, 0.4, 0.8, 0.0),
    ):
        hints = {
            "that is the part that goes by other routes": 1 - want,
            "that is what is left, asked is the part of the fall": by_keys / whole,
        }
        where = f"whole {whole}, altogether {altogether}, by_keys {by_keys}: "
        yield judge(attempt(whole, altogether, by_keys), want, hints, where)
