r"""Contractions: which tensors a product multiplies, and over what it sums.

A product and the sums around it are one contraction. Numbers and named scalars stand apart from
its tensors, and Kronecker deltas with a summed index vanish.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from string import ascii_letters as _LETTERS

from mha_book.notation.expression import (
    Delta,
    Derivative,
    Expression,
    Number,
    Product,
    Quotient,
    Sum,
    Tensor,
    all_indices,
    children,
    free_indices,
    fresh,
    rename,
)

__all__ = ["Contraction", "einsums", "flatten", "own_indices", "signed", "subscripts"]


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
    if isinstance(factor, Tensor | Derivative):
        plain = tuple(index for index in factor.indices if isinstance(index, str))
        if len(plain) == len(factor.indices):
            return plain
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
