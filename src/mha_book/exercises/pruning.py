"""Checks of the exercises of the chapter on removing heads."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("sensitivity")
def _sensitivity(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    outputs, slopes = rng.normal(size=(2, 5, 3, 7, 2))  # (texts, N, T, C)
    products = outputs * slopes
    of_texts = products.sum(axis=(2, 3))
    signed, inside = of_texts.mean(axis=0), abs(products).sum(axis=(2, 3)).mean(axis=0)
    hints = {
        "opposite signs of texts cancel: take the absolute value first": abs(signed),
        "this has a sign: take the absolute value of every text": signed,
        "this is the signed estimate of the loss without the head": -signed,
        "a gate scales a whole head: sum before abs": inside,
        "this is the sum over texts, not the mean": abs(of_texts).sum(axis=0),
    }
    otherwise = "these are not the means over texts of the gate's gradient without its sign: "
    got = attempt(outputs.copy(), slopes.copy())
    yield judge(got, abs(of_texts).mean(axis=0), hints, "", otherwise)


@exercise("remove")
def _remove(attempt: Attempt) -> Iterator[str | None]:
    rises = np.array([[0.3, -0.1, 0.0, 0.7], [0.05, 0.9, 0.2, 0.4], [0.6, 0.1, 0.8, 0.02]])
    for share in (0.25, 0.5, 0.0):
        count = round(share * rises.size)
        order = np.argsort(rises.ravel())
        want = {(int(i) // 4, int(i) % 4) for i in order[:count]}
        got = attempt(rises.copy(), share)
        rows = [np.ravel(np.asarray(head)).tolist() for head in got]
        if any(len(row) != 2 for row in rows):
            yield "a head is a pair of layer and number within the layer; got something else"
        found = {(row[0], row[1]) for row in rows}
        where = f"for {share:.0%} of {rises.size} heads"
        if found == want:
            continue
        if len(rows) != count:
            yield f"{where} expected {count} heads; got {len(rows)}"
        if found == {(int(i) // 4, int(i) % 4) for i in order[::-1][:count]}:
            yield f"{where} these are the heads that are missed most: a rise is a loss"
        if found <= {(float(i), rises.ravel()[i]) for i in range(rises.size)}:
            yield "these are pairs of number and importance, not of layer and head"
        if found == {(i // 4, i % 4) for i in range(count)}:
            yield f"{where} these are the first of the model: sort by the rise"
        yield f"{where} expected {sorted(want)}; got {sorted(found)}"


@exercise("excess")
def _excess(attempt: Attempt) -> Iterator[str | None]:
    def loss(gates: Any) -> float:
        closed = 1 - np.asarray(gates, float)
        return float(2 + 0.1 * closed[0] - 0.2 * closed[1] + 3 * closed[0] * closed[1] + closed[2])

    for heads, want in (([0, 1], 3.0), ([0, 2], 0.0), ([0, 1, 2], 3.0)):
        gates = np.ones(4)
        gates[heads] = 0
        joint = loss(gates) - loss(np.ones(4))
        own = want - (len(heads) - 1) * 2
        hints = {
            "this is the joint rise: take away what each does alone": joint,
            "this is the sum of what each does alone": joint - want,
            "the sign is the other one: positive if the set is missed more": -want,
            "each single rise is relative to the whole model": own,
        }
        yield judge(attempt(loss, 4, list(heads)), want, hints, f"for the heads {heads} ")
