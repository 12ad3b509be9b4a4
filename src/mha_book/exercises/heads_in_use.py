"""Checks of the exercises of the chapter on heads in use."""

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _controls(attempt: Attempt) -> str | None:
    top = [(3, 1), (3, 4), (5, 0)]
    drawn = set()
    for seed in range(20):
        got = attempt(list(top), 6, np.random.default_rng(seed))
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


def _copy(attempt: Attempt) -> str | None:
    for tokens, want in (
        ([0, 1, 2, 0], 1),
        ([3, 3], 3),
        ([4, 5, 4, 6, 4], 6),
        ([7, 8, 9], None),
        ([2], None),
    ):
        got = attempt(list(tokens))
        if got == want and (got is None) == (want is None):
            continue
        hint = ""
        if want is not None and got == tokens[-1]:
            hint = ": that repeats the last token, as keys of the token itself do"
        elif want == 6 and got == 5:
            hint = ": that follows the first occurrence, not the last one before the end"
        return f"after {tokens} expected {want}; got {got}{hint}"
    return None


def _compose(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    size = np.linalg.norm
    for width in (3, 5):
        omega, gamma = rng.normal(size=(2, width, width))
        got, want = float(attempt(omega, gamma)), size(omega @ gamma.T) / size(omega) / size(gamma)
        if np.isclose(got, want):
            continue
        hint = ""
        if np.isclose(got, size(omega @ gamma) / size(omega) / size(gamma)):
            hint = "; that is composition through the queries: the keys read the columns of gamma"
        elif np.isclose(got, want**2):
            hint = "; take the root"
        elif np.isclose(got, size(omega @ gamma.T)):
            hint = "; divide by the sizes of both"
        return f"expected {want:.3f}; got {got:.3f}{hint}"
    return None


def _route(attempt: Attempt) -> str | None:
    for whole, altogether, by_keys, want in (
        (1.0, 0.2, 0.4, 0.75),
        (0.5, 0.1, 0.1, 1.0),
        (0.8, 0.4, 0.8, 0.0),
    ):
        got = float(attempt(whole, altogether, by_keys))
        if np.isclose(got, want):
            continue
        hint = ""
        if np.isclose(got, 1 - want):
            hint = "; that is the part that goes by other routes"
        elif np.isclose(got, by_keys / whole):
            hint = "; that is what is left, asked is the part of the fall"
        given = f"whole {whole}, altogether {altogether}, by_keys {by_keys}"
        return f"{given}: expected {want:.2f}; got {got:.2f}{hint}"
    return None


CHECKS: dict[str, Check] = {
    "controls": _controls,
    "copy": _copy,
    "compose": _compose,
    "route": _route,
}
"""The checks of the chapter, by the name of the exercise."""
