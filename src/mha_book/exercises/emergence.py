"""Checks of the exercises of the chapter on how heads come to their roles."""

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _even_score(attempt: Attempt) -> str | None:
    for positions in ([5, 8, 11, 14, 17, 20], [1], [3, 7]):
        got = attempt(list(positions))
        if not isinstance(got, int | float):
            return f"expected a number; got {type(got).__name__}"
        want = float(np.mean([1 / (i + 1) for i in positions]))
        if abs(got - want) < 1e-6:
            continue
        if abs(got - float(np.mean([1 / i for i in positions]))) < 1e-6:
            return "a query sees itself too: at position i it sees i + 1 tokens"
        if abs(got - 1 / (float(np.mean(positions)) + 1)) < 1e-6:
            return "average the shares, not the positions: 1/x of a mean is not the mean of 1/x"
        return f"for positions {positions} expected {want:.4f}; got {got:.4f}"
    return None


def _dimensions(attempt: Attempt) -> str | None:
    cases: tuple[tuple[list[float], float, int], ...] = (
        ([3.0, 1.0, 1.0, 1.0], 0.9, 3),
        ([1.0, 2.0, 2.0, 4.0], 0.6, 1),
        ([2.0, 2.0], 0.5, 1),
        ([10.0, 1.0, 0.1], 0.999, 2),
        ([1.0] * 7, 0.99, 7),
    )
    for singular, share, want in cases:
        got = attempt(np.array(singular), share)
        where = f"for singular values {singular} and a share of {share}"
        if not np.isfinite(got):
            return f"{where} expected a number; got {got}"
        if got == want:
            continue
        plain = np.sort(singular)[::-1]
        of_values = int((np.cumsum(plain) / plain.sum() < share - 1e-9).sum()) + 1
        in_order = np.square(singular)
        unsorted = int((np.cumsum(in_order) / in_order.sum() < share - 1e-9).sum()) + 1
        if got == of_values:
            return f"{where} {want}: the energy is the square of a singular value"
        if got == unsorted:
            return f"{where} {want}: the largest come first, whatever the order given"
        return f"{where} expected {want}; got {got}"
    return None


def _two_wide(attempt: Attempt) -> str | None:
    for n in (2, 3, 8, 37, 100):
        got = attempt(n)
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


def _paired(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    for size in (16, 5):
        changed, control = (rng.uniform(size=size) < p for p in (0.6, 0.3))
        got = attempt(changed.tolist(), control.tolist())
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            return f"expected a pair, mean and standard error; got {type(got).__name__}"
        mean, error = (float(x) for x in got)
        difference = changed * 1.0 - control
        want = difference.std(ddof=1) / np.sqrt(size)
        if not abs(mean - difference.mean()) < 1e-6:
            return f"expected the mean difference {difference.mean():.4f}; got {mean:.4f}"
        if abs(error - want) < 1e-6:
            continue
        apart = np.sqrt((changed.var(ddof=1) + control.var(ddof=1)) / size)
        for value, said in (
            (difference.std() / np.sqrt(size), "divide the squares by n - 1 (ddof=1)"),
            (difference.std(ddof=1), "this is the spread of one start; of a mean it is smaller"),
            (apart, "this takes the two lists as unrelated; take the differences first"),
        ):
            if abs(error - value) < 1e-6:
                return f"the standard error is {want:.4f}, not {error:.4f}: {said}"
        return f"expected a standard error of {want:.4f}; got {error:.4f}"
    return None


CHECKS: dict[str, Check] = {
    "even-score": _even_score,
    "dimensions": _dimensions,
    "two-wide": _two_wide,
    "paired": _paired,
}
"""The exercises of the chapter and their checks."""
