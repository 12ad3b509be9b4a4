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
        w_ov, w_qk = rng.normal(size=(2, width, width))
        whole = size(w_ov) * size(w_qk)
        want = float(size(w_ov @ w_qk.T) / whole)
        through = "that is composition through the queries: the keys read the columns of w_qk"
        hints = {
            through: size(w_ov @ w_qk) / whole,
            "take the root": want**2,
            "divide by the sizes of both": want * whole,
        }
        yield judge(attempt(w_ov, w_qk), want, hints)


@exercise("route")
def _route(attempt: Attempt) -> Iterator[str | None]:
    for clean, ablated, keys_only, want in (
        (1.0, 0.2, 0.4, 0.75),
        (0.5, 0.1, 0.1, 1.0),
        (0.8, 0.4, 0.8, 0.0),
    ):
        hints = {
            "that is the part that goes by other routes": 1 - want,
            "that is what is left, asked is the part of the fall": keys_only / clean,
        }
        where = f"clean {clean}, ablated {ablated}, keys_only {keys_only}: "
        yield judge(attempt(clean, ablated, keys_only), want, hints, where)
