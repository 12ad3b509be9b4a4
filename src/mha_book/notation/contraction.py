r"""Contractions: which tensors a product multiplies, over what it sums, and in which order.

A product and the sums around it are one contraction. Numbers and named scalars stand apart from
its tensors, Kronecker deltas with a summed index vanish, and what is left is contracted two
tensors at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod
from string import ascii_letters as _LETTERS

import opt_einsum

from mha_book.notation.expression import (
    Delta,
    Expression,
    Number,
    Product,
    Quotient,
    Sum,
    all_indices,
    free_indices,
    fresh,
    rename,
)

__all__ = ["Contraction", "Step", "flatten", "order", "signed", "subscripts"]

# Above so many tensors all orders are too many to try.
_MOST_BY_SEARCH = 7


@dataclass(frozen=True)
class Contraction:
    """A sum of a product, taken apart.

    Attributes:
        number: the product of the numbers.
        scalars: the factors without indices, free or summed, such as ``1 / sqrt(d_k)``.
        factors: the factors with indices.
        summed: the indices that are summed over.
        output: the indices that stay, in the order in which they first stand.
    """

    number: Fraction
    scalars: tuple[Expression, ...]
    factors: tuple[Expression, ...]
    summed: tuple[str, ...]
    output: tuple[str, ...]


class _Collector:
    """Gathers the factors of nested products, sums and quotients by scalars."""

    def __init__(self, node: Expression) -> None:
        self.number = Fraction(1)
        self.scalars: list[Expression] = []
        self.factors: list[Expression] = []
        self.summed: list[str] = []
        self.output = free_indices(node)
        self.everywhere = all_indices(node)
        self.add(node)
        self.drop_deltas()

    def add(self, node: Expression) -> None:
        match node:
            case Number(value):
                self.number *= value
            case Product(factors):
                for factor in factors:
                    self.add(factor)
            case Sum(indices, body):
                taken = {*self.output, *self.summed}
                names = {i: fresh(i, self.everywhere) for i in indices if i in taken}
                self.everywhere |= {*names.values()}
                self.summed += [names.get(i, i) for i in indices]
                self.add(rename(body, names))
            case Quotient(Number(), denominator) if not all_indices(denominator):
                self.scalars.append(node)
            case Quotient(numerator, denominator) if not all_indices(denominator):
                self.add(numerator)
                self.add(Quotient(Number(Fraction(1)), denominator))
            case _ if all_indices(node):
                self.factors.append(node)
            case _:
                self.scalars.append(node)

    def drop_deltas(self) -> None:
        """Put one index for both of a delta that has a summed one."""
        kept: list[Expression] = []
        rest = self.factors
        while rest:
            node, *rest = rest
            if isinstance(node, Delta) and {node.first, node.second} & {*self.summed}:
                old, new = node.second, node.first
                if old not in self.summed:
                    old, new = new, old
                if old != new:
                    self.summed.remove(old)
                    kept = [rename(other, {old: new}) for other in kept]
                    rest = [rename(other, {old: new}) for other in rest]
            else:
                kept.append(node)
        self.factors = kept


def flatten(node: Expression) -> Contraction:
    """Take a product, a sum, or any other expression apart as one contraction.

    Nested products and sums become one; a sum whose index has the name of another is renamed.
    """
    found = _Collector(node)
    return Contraction(
        found.number,
        tuple(found.scalars),
        tuple(found.factors),
        tuple(found.summed),
        found.output,
    )


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
    terms: _Terms, output: frozenset[str], sizes: Mapping[str, int], limit: int
) -> tuple[int, list[tuple[int, ...]]] | None:
    """Return the cheapest path without a result above the limit, by trying all; None without."""
    if len(terms) == 1:
        return 0, []
    best = None
    for pair in combinations(range(len(terms)), 2):
        first, second, result = _pairs([pair], terms, output)[0]
        if _size(result, sizes) > limit:
            continue
        rest = tuple(term for at, term in enumerate(terms) if at not in pair)
        below = _search((*rest, result), output, sizes, limit)
        if below is not None:
            cost = below[0] + _size(first | second, sizes)
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
    path = opt_einsum.paths.optimal(list(terms), output, sizes)
    limit = max(_size(term, sizes) for term in (*terms, output))
    largest = max(_size(result, sizes) for *_, result in _pairs(path, terms, output))
    if largest > limit and (found := _search(terms, output, sizes, limit)) is not None:
        path = found[1]
    return path


def order(
    terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[Step, ...]:
    """Return the steps that contract the tensors, two at a time.

    The order needs the fewest multiplications (``opt_einsum``'s optimal path) among those whose
    intermediate results are no larger than the largest tensor or the result; among all, where
    every order has a larger one. An index that only one tensor has is summed first.

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


def signed(term: Expression) -> tuple[bool, Expression]:
    """Return whether a term of a sum is subtracted, and what is added or subtracted."""
    match term:
        case Number(value) if value < 0:
            return True, Number(-value)
        case Product((Number(value), only)) if value == -1:
            return True, only
        case Product((Number(value), *rest)) if value == -1:
            return True, Product(tuple(rest))
        case Product((Number(value), *rest)) if value < 0:
            return True, Product((Number(-value), *rest))
        case Sum(indices, body, written):
            minus, rest_of = signed(body)
            return minus, Sum(indices, rest_of, written)
    return False, term


def subscripts(terms: Sequence[tuple[str, ...]], output: tuple[str, ...]) -> str:
    """Return what ``einsum`` calls a contraction: ``"ib,hba->hia"``.

    An index keeps its letter where it is one letter; any other gets a letter that is free.
    """
    labels = dict.fromkeys(label for term in (*terms, output) for label in term)
    letters = {label: label for label in labels if label in _LETTERS}
    free = iter(letter for letter in reversed(_LETTERS) if letter not in letters)
    for label in labels:
        if label not in letters:
            base = label[0].upper()
            new = base if base in _LETTERS and base not in letters.values() else next(free)
            letters[label] = new
    written = ["".join(letters[label] for label in term) for term in (*terms, output)]
    return ",".join(written[:-1]) + "->" + written[-1]
