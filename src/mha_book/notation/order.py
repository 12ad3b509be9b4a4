r"""The order of a contraction: two tensors at a time, at the least cost that needs no room."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import opt_einsum

__all__ = ["Step", "order"]

_MOST_BY_SEARCH = 5  # tensors: above that, all orders are too many to try


@dataclass(frozen=True)
class Step:
    """One operation of a contraction.

    Attributes:
        operands: one or two positions. The tensors have the first ones; the result of each step
            has the next.
        result: the indices of the result, in the order of its axes.
        summed: the indices that the step sums over.
    """

    operands: tuple[int, ...]
    result: tuple[str, ...]
    summed: tuple[str, ...]


def _size(labels: Iterable[str], sizes: Mapping[str, int]) -> int:
    return prod(sizes[label] for label in {*labels})


_Terms = tuple[frozenset[str], ...]


def _pairs(path: Sequence[tuple[int, ...]], terms: _Terms, output: frozenset[str]) -> list[_Terms]:
    """Return for each contraction of a path its two tensors and its result."""
    left = list(terms)
    found = []
    for positions in path:
        taken = [left.pop(position) for position in sorted(positions, reverse=True)]
        kept = frozenset().union(*taken) & output.union(*left)
        left.append(kept)
        found.append((*taken, kept))
    return found


def _search(
    terms: _Terms, output: frozenset[str], sizes: Mapping[str, int], limit: int | None
) -> tuple[int, list[tuple[int, ...]]] | None:
    """Return the cheapest path without a result above the limit, by trying all; None without."""
    if len(terms) == 1:
        return 0, []
    best = None
    for pair in combinations(range(len(terms)), 2):
        first, second, result = _pairs([pair], terms, output)[0]
        if limit is not None and _size(result, sizes) > limit:
            continue
        rest = tuple(term for at, term in enumerate(terms) if at not in pair)
        below = _search((*rest, result), output, sizes, limit)
        if below is not None:
            summed = result != first | second
            cost = below[0] + _size(first | second, sizes) * (2 if summed else 1)
            if best is None or cost < best[0]:
                best = cost, [pair, *below[1]]
    return best


def _path(
    terms: _Terms, output: frozenset[str], sizes: Mapping[str, int]
) -> Sequence[tuple[int, ...]]:
    """Return the cheapest order; one without a large intermediate result where there is one."""
    if len(terms) > _MOST_BY_SEARCH:
        path: Sequence[tuple[int, ...]] = opt_einsum.paths.auto(list(terms), output, sizes)
        return path
    limit = max(_size(term, sizes) for term in (*terms, output))
    found = _search(terms, output, sizes, limit) or _search(terms, output, sizes, None)
    assert found is not None
    return found[1]


def order(
    terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[Step, ...]:
    """Return the steps that contract the tensors, two at a time.

    Of up to five tensors, the order needs the fewest operations among those whose intermediate
    results are no larger than the largest tensor or the result; among all, where every order has
    a larger one. Of more tensors, it is one that ``opt_einsum`` finds. An index that only one
    tensor has is summed first.

    Args:
        terms: the indices of each tensor, none twice.
        output: the indices of the result, each in some term; all others are summed over.
        sizes: the size of each index.

    Example:
        >>> sizes = {"i": 7, "b": 5, "h": 3, "a": 2}
        >>> for step in order([("i", "b"), ("b", "h", "a"), ("h",)], ("i", "a"), sizes):
        ...     print(step.operands, step.result, step.summed)
        (1, 2) ('b', 'a') ('h',)
        (0, 3) ('i', 'a') ('b',)
    """
    steps: list[Step] = []
    current = []
    for at, term in enumerate(terms):
        elsewhere = {*output}.union(*(other for o, other in enumerate(terms) if o != at))
        alone = tuple(label for label in term if label not in elsewhere)
        if alone:
            kept = tuple(label for label in term if label in elsewhere)
            current.append((len(terms) + len(steps), kept))
            steps.append(Step((at,), kept, alone))
        else:
            current.append((at, tuple(term)))
    if len(current) > 1:
        path = _path(tuple(frozenset(term) for _, term in current), frozenset(output), sizes)
        for positions in path:
            second, first = (current.pop(at) for at in sorted(positions, reverse=True))
            needed = {*output}.union(*(term for _, term in current))
            both = tuple(dict.fromkeys(first[1] + second[1]))
            kept = tuple(label for label in both if label in needed) if current else output
            gone = tuple(label for label in both if label not in needed)
            current.append((len(terms) + len(steps), kept))
            steps.append(Step((first[0], second[0]), kept, gone))
    return tuple(steps)
