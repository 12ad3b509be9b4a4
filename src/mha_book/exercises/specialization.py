"""Checks of the exercises of the chapter on what heads learn."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_book.exercises import Check

__all__ = ["CHECKS"]

Attempt = Callable[..., Any]


def _null(attempt: Attempt) -> str | None:
    for length in (2, 5, 12):
        got = attempt(length)
        if got is ...:
            return None
        want = float(np.mean([1 / (i + 1) for i in range(1, length)]))
        if not isinstance(got, int | float):
            return f"expected a number; got {type(got).__name__}"
        got = float(got)
        if abs(got - want) < 1e-6:
            continue
        every = float(np.mean([1 / (i + 1) for i in range(length)]))
        for value, said in (
            (every, "the first row sees itself alone: it has no token before, and does not count"),
            (1 / length, "row i of a causal head sees i + 1 keys, not all of them"),
            (float(np.mean([1 / i for i in range(1, length)])), "row i sees itself too"),
        ):
            if abs(got - value) < 1e-6:
                return f"for {length} tokens {got:.4f}, not {want:.4f}: {said}"
        return f"for {length} tokens expected {want:.4f}; got {got:.4f}"
    return None


def _induction(attempt: Attempt) -> str | None:
    cases: tuple[tuple[list[int], int, set[int]], ...] = (
        ([7, 8, 9, 7], 3, {1}),
        ([7, 8, 9, 7, 8], 4, {2}),
        ([7, 8, 7, 9, 7], 4, {1, 3}),
        ([5, 5, 5], 2, {1, 2}),
        ([1, 2, 3], 2, set()),
    )
    for tokens, query, want in cases:
        got = attempt(list(tokens), query)
        if got is ...:
            return None
        got = {int(j) for j in got}
        if got == want:
            continue
        where = f"for tokens {tokens} and query {query}"
        same = {j for j in range(query) if tokens[j] == tokens[query]}
        before = {j - 1 for j in same if j}
        if got == same:
            return f"{where} these are the earlier occurrences; the target is what follows each"
        if got == before:
            return f"{where} these stand before the earlier occurrences, not after"
        if got == want | {query + 1}:
            return f"{where} the query's own successor is not visible, and no target"
        return f"{where} expected {sorted(want)}; got {sorted(got)}"
    return None


def _kind(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    for measured, null in ((rng.uniform(size=(3, 5)), 0.25), (np.array([[0.1, 0.62]]), 0.2)):
        got = attempt(measured, null)
        if got is ...:
            return None
        got = np.asarray(got)
        want = (measured - null) / (1 - null)
        if got.shape != want.shape:
            return f"expected a value for each head, shape {want.shape}; got {got.shape}"
        if np.allclose(got, want, atol=1e-6):
            continue
        if np.allclose(got, measured - null, atol=1e-6):
            return "this is the difference; divide by what a pure head would have, 1 - null"
        if np.allclose(got, measured / null, atol=1e-6):
            return "this is the ratio, which goes up to 1 / null and not to 1"
        return f"for {measured[0, 0]:.3f} over a null of {null} expected {want[0, 0]:.3f}"
    return None


def _controls(attempt: Attempt) -> str | None:
    top = [(3, 1), (3, 4), (5, 0)]
    drawn = set()
    for seed in range(20):
        got = attempt(list(top), 6, np.random.default_rng(seed))
        if got is ...:
            return None
        heads = [(int(layer), int(head)) for layer, head in got]
        if sorted(layer for layer, _ in heads) != [3, 3, 5]:
            return f"expected as many heads of each layer as there are in {top}; got {heads}"
        if len(set(heads)) != len(heads):
            return f"a head was drawn twice: {heads}"
        if set(heads) & set(top):
            return f"controls must not be of the heads they are compared with: {heads}"
        if any(not 0 <= head < 6 for _, head in heads):
            return f"a layer has heads 0 to 5; got {heads}"
        drawn.add(tuple(sorted(heads)))
    if len(drawn) < 5:
        return f"20 draws gave {len(drawn)} different sets: draw with the generator"
    return None


def _two_wide(attempt: Attempt) -> str | None:
    for n in (2, 3, 8, 37, 100):
        got = attempt(n)
        if got is ...:
            return None
        where = f"for n = {n}"
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return f"{where} expected a pair, queries and keys; got {type(got).__name__}"
        query, key = (np.asarray(x, np.float64) for x in got)
        for x, name in ((query, "queries"), (key, "keys")):
            if x.shape != (n, 2):
                return f"{where} expected {name} of shape ({n}, 2); got {x.shape}"
            if not np.isfinite(x).all():
                return f"{where} the {name} are not finite"
        scores = query @ key.T / np.sqrt(2)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        own = np.diag(weights / weights.sum(1, keepdims=True))
        best = scores.argmax(1)
        if (best != np.arange(n)).any():
            i = int(np.argmax(best != np.arange(n)))
            return (
                f"{where} query {i} prefers key {best[i]}: keys of one length, all around a circle?"
            )
        if own.min() < 0.9:
            return (
                f"{where} every query prefers its own key, with {own.min():.2f} of the weight at "
                "least: make the queries longer, the more keys the longer"
            )
    return None


CHECKS: dict[str, Check] = {
    "null-value": _null,
    "induction-targets": _induction,
    "excess": _kind,
    "controls": _controls,
    "two-wide": _two_wide,
}
"""The exercises of the chapter and their checks."""
