r"""Contractions: which tensors a product multiplies, over what it sums, in which order, and how.

A product and the sums around it are one contraction. Numbers and named scalars stand apart from
its tensors, and Kronecker deltas with a summed index vanish. Its tensors are multiplied two at a
time, at the least cost that needs no room, each time as one product of matrices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod
from string import ascii_letters as _LETTERS
from typing import NamedTuple

import jax
import jax.numpy as jnp
import opt_einsum

from mha_book.notation.expression import (
    Delta,
    Expression,
    Named,
    Number,
    Product,
    Quotient,
    Sum,
    all_indices,
    children,
    free_indices,
    fresh,
    is_plain,
    rename,
    written_indices,
)

__all__ = [
    "Contraction",
    "Step",
    "contract",
    "einsums",
    "flatten",
    "order",
    "own_indices",
    "signed",
    "subscripts",
]


_MOST_BY_SEARCH = 5  # tensors: above that, all orders are too many to try


@dataclass(frozen=True)
class Contraction:
    """A sum of a product, taken apart.

    Attributes:
        number: the product of the numbers.
        scalars: the factors without indices, free or summed, such as ``1 / sqrt(d_k)``.
        factors: the factors with indices.
        summed: the indices that are summed over.
        output: the indices that stay, in the order in which they first stand.
        renamed: for each index that has a new name the one it had.
    """

    number: Fraction
    scalars: tuple[Expression, ...]
    factors: tuple[Expression, ...]
    summed: tuple[str, ...]
    output: tuple[str, ...]
    renamed: dict[str, str]


class _Collector:
    """Gathers the factors of nested products, sums and quotients by scalars."""

    def __init__(self, node: Expression, taken: Iterable[str]) -> None:
        self.number = Fraction(1)
        self.scalars: list[Expression] = []
        self.factors: list[Expression] = []
        self.summed: list[str] = []
        self.output = free_indices(node)
        self.everywhere = all_indices(node) | {*taken}
        self.renamed: dict[str, str] = {}
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
                self.renamed |= {new: old for old, new in names.items()}
                self.summed += [names.get(i, i) for i in indices]
                self.add(rename(body, names))
            case Quotient(Number(), denominator) if not free_indices(denominator):
                self.scalars.append(node)
            case Quotient(numerator, denominator) if not free_indices(denominator):
                self.add(numerator)
                self.add(Quotient(Number(Fraction(1)), denominator))
            case _ if free_indices(node):
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


def flatten(node: Expression, taken: Iterable[str] = ()) -> Contraction:
    """Take a product, a sum, or any other expression apart as one contraction.

    Nested products and sums become one; the index of a sum that has the name of another gets a
    new one.

    Args:
        node: the expression.
        taken: indices elsewhere, whose names no index may get.
    """
    found = _Collector(node, taken)
    return Contraction(
        found.number,
        tuple(found.scalars),
        tuple(found.factors),
        tuple(found.summed),
        found.output,
        found.renamed,
    )


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


def own_indices(factor: Expression) -> tuple[str, ...]:
    """Return an operand's indices as einsum has them: of a tensor, as often as they stand."""
    if isinstance(factor, Named) and is_plain(factor):
        return written_indices(factor)
    return free_indices(factor)


def einsums(node: Expression, output: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return every contraction in an expression as einsum writes it, the outermost first.

    Args:
        node: the expression.
        output: its free indices in the order of the result's axes; None for their own order.
    """
    parts = flatten(node)
    found: tuple[str, ...] = ()
    if len(parts.factors) > 1 or (parts.factors and parts.summed):
        terms = [own_indices(factor) for factor in parts.factors]
        present = {index for term in terms for index in term}
        whole = parts.output if output is None else output
        found = (subscripts(terms, tuple(index for index in whole if index in present)),)
    for factor in (*parts.factors, *parts.scalars):
        for child in children(factor):
            found += einsums(child)
    return found


# The order.


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


# One step: a product of matrices.


class _Matrix(NamedTuple):
    """A tensor as matrices: the array, and which of its axes is summed over."""

    array: jax.Array
    summed: int


def contract(
    first: tuple[jax.Array, Sequence[str]],
    second: tuple[jax.Array, Sequence[str]],
    result: Sequence[str],
) -> jax.Array:
    r"""Return the product of two tensors, summed over the indices that the result lacks.

    Args:
        first: an array and the index of each of its axes, no index twice.
        second: likewise; it shares at least one index with the first that is summed over.
        result: indices, each in one of the tensors; what the result lacks, both have.

    Returns:
        The array with the axes of ``result``.

    Example:
        >>> x, w = jnp.ones((3, 5)), jnp.ones((2, 5, 7))
        >>> contract((x, "ib"), (w, "hba"), "hia").shape
        (2, 3, 7)
    """
    if result and result[-1] in first[1] and result[-1] not in second[1]:
        first, second = second, first  # the last index of the result comes from the second
    sizes = {
        i: n for array, axes in (first, second) for i, n in zip(axes, array.shape, strict=True)
    }
    batch = [i for i in result if i in first[1] and i in second[1]]
    summed = [i for i in first[1] if i not in result]
    rows = [i for i in result if i in first[1] and i not in batch]
    columns = [i for i in result if i in second[1] and i not in batch]
    left = _matrix(*first, batch, rows, summed, sizes)
    right = _matrix(*second, batch, columns, summed, sizes)
    every = tuple(range(len(batch)))
    dimensions = (((left.summed,), (right.summed,)), (every, every))
    found = (*batch, *rows, *columns)
    product = jax.lax.dot_general(left.array, right.array, dimensions)
    product = jnp.reshape(product, [sizes[i] for i in found])
    return jnp.transpose(product, [found.index(i) for i in result])


def _matrix(
    array: jax.Array,
    axes: Sequence[str],
    batch: Sequence[str],
    kept: Sequence[str],
    summed: Sequence[str],
    sizes: dict[str, int],
) -> _Matrix:
    """Lay a tensor out; without indices that stay, as vectors."""
    groups = [summed, kept] if axes[-1] in kept else [kept, summed]
    groups = [group for group in groups if group]
    order = [axes.index(i) for i in (*batch, *(i for group in groups for i in group))]
    shape = [*(sizes[i] for i in batch), *(prod(sizes[i] for i in group) for group in groups)]
    return _Matrix(
        jnp.reshape(jnp.transpose(array, order), shape), len(batch) + groups.index(summed)
    )
