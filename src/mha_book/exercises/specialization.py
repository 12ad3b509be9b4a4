"""Checks of the exercises of the chapter on what heads learn."""

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _null(attempt: Attempt) -> str | None:
    for length in (2, 5, 12):
        got = attempt(length)
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


def _overlap(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(1)
    for shape in ((30, 9), (6, 11)):
        one, other = (rng.uniform(size=shape) < p for p in (0.4, 0.3))
        other |= one & (rng.uniform(size=shape) < 0.5)
        got = attempt(one, other)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return f"expected a pair, in both and by chance; got {type(got).__name__}"
        both, chance = (float(x) for x in got)
        want = float((one & other).sum())
        if both != want:
            either = float((one | other).sum())
            said = ": these are in one list or the other" if both == either else ""
            return f"expected {want:.0f} heads in both lists; got {both}{said}"
        want = float(one.sum() * other.sum() / one.size)
        if abs(chance - want) < 1e-6:
            continue
        if abs(chance * one.size - want) < 1e-6:
            return "this is a share of all heads; how many heads is it?"
        return (
            f"of {one.size} heads {one.sum()} and {other.sum()} are listed: by chance expected "
            f"{want:.2f} in both; got {chance:.2f}"
        )
    return None


CHECKS: dict[str, Check] = {
    "null-value": _null,
    "induction-targets": _induction,
    "excess": _kind,
    "overlap": _overlap,
}
"""The exercises of the chapter and their checks."""
