"""Checks of the exercises of the chapter on removing heads."""

from typing import Any

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _sensitivity(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    outputs, slopes = rng.normal(size=(2, 5, 3, 7, 2))  # (texts, N, T, C)
    got = attempt(outputs.copy(), slopes.copy())
    got, products = np.asarray(got), outputs * slopes
    of_texts = products.sum(axis=(2, 3))
    want = abs(of_texts).mean(axis=0)
    if got.shape != want.shape:
        return f"expected one number for each head, the shape (N,) = (3,); got {got.shape}"
    if np.allclose(got, want):
        return None
    for value, said in (
        (
            abs(of_texts.mean(axis=0)),
            "opposite signs of texts cancel: take the absolute value first",
        ),
        (of_texts.mean(axis=0), "this has a sign: take the absolute value of every text"),
        (-of_texts.mean(axis=0), "this is the signed estimate of the loss without the head"),
        (abs(products).sum(axis=(2, 3)).mean(axis=0), "a gate scales a whole head: sum before abs"),
        (abs(of_texts).sum(axis=0), "this is the sum over texts, not the mean"),
    ):
        if np.allclose(got, value):
            return said
    return "the numbers are not the mean over texts of the gate's gradient without its sign"


def _remove(attempt: Attempt) -> str | None:
    rises = np.array([[0.3, -0.1, 0.0, 0.7], [0.05, 0.9, 0.2, 0.4], [0.6, 0.1, 0.8, 0.02]])
    for share in (0.25, 0.5, 0.0):
        count = round(share * rises.size)
        order = np.argsort(rises.ravel())
        want = {(int(i) // 4, int(i) % 4) for i in order[:count]}
        got = attempt(rises.copy(), share)
        rows = [np.ravel(np.asarray(head)).tolist() for head in got]
        if any(len(row) != 2 for row in rows):
            return "a head is a pair of layer and number within the layer; got something else"
        found = {(row[0], row[1]) for row in rows}
        where = f"for {share:.0%} of {rises.size} heads"
        if found == want:
            continue
        if len(rows) != count:
            return f"{where} expected {count} heads; got {len(rows)}"
        if found == {(int(i) // 4, int(i) % 4) for i in order[::-1][:count]}:
            return f"{where} these are the heads that are missed most: a rise is a loss"
        if found <= {(float(i), rises.ravel()[i]) for i in range(rises.size)}:
            return "these are pairs of number and importance, not of layer and head"
        if found == {(i // 4, i % 4) for i in range(count)}:
            return f"{where} these are the first of the model: sort by the rise"
        return f"{where} expected {sorted(want)}; got {sorted(found)}"
    return None


def _excess(attempt: Attempt) -> str | None:
    def loss(gates: Any) -> float:
        closed = 1 - np.asarray(gates, float)
        return float(2 + 0.1 * closed[0] - 0.2 * closed[1] + 3 * closed[0] * closed[1] + closed[2])

    for heads, want in (([0, 1], 3.0), ([0, 2], 0.0), ([0, 1, 2], 3.0)):
        got = attempt(loss, 4, list(heads))
        gates = np.ones(4)
        gates[heads] = 0
        joint = loss(gates) - loss(np.ones(4))
        where = f"for the heads {heads}"
        if abs(float(got) - want) < 1e-6:
            continue
        if abs(float(got) - joint) < 1e-6:
            return f"{where} this is the joint rise: take away what each does alone"
        if abs(float(got) - (joint - want)) < 1e-6:
            return f"{where} this is the sum of what each does alone"
        if abs(float(got) + want) < 1e-6:
            return f"{where} the sign is the other one: positive if the set is missed more"
        if abs(float(got) - (want - (len(heads) - 1) * 2)) < 1e-6:
            return f"{where} each single rise is relative to the whole model"
        return f"{where} expected {want:.2f}; got {float(got):.2f}"
    return None


CHECKS: dict[str, Check] = {
    "sensitivity": _sensitivity,
    "remove": _remove,
    "excess": _excess,
}
"""The checks of the chapter on removing heads, by the name of the exercise."""
