r"""The index rules: which indices are free, which are summed, and where.

1. An index on the left side is free. It has to stand in a right side.
2. An index that stands only on the right is summed. The sum reaches over the innermost product
   that contains every occurrence of the index in its term; a lone tensor is a product of one
   factor.
3. Inside a function, a power or a denominator a sum has to be written. An index that is free, or
   summed outside, may stand there.
4. A free index may stand in several factors: it is batch-like. The strict reading (Einstein's)
   does not allow it: an index that stands twice in a product is summed, and a free index
   stands once in each term.
5. Every term of a right side has every free index, numbers apart. A term that is to be repeated
   along an index (a bias) is declared. Inside brackets and functions terms broadcast freely.
6. A written sum is over an index that its body has and that means nothing outside.
7. An index to be summed that stands in a numerator and in its denominator is ambiguous.

If the left side is no plain tensor or derivative, the statement is an identity: its free indices
are those of the left side that no written sum binds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mha_book.notation.checks import Checks
from mha_book.notation.expression import (
    Add,
    Affine,
    Derivative,
    Expression,
    Function,
    Power,
    Product,
    Quotient,
    Sum,
    Tensor,
    children,
    free_indices,
)
from mha_book.notation.parser import Statement
from mha_book.notation.places import fail_at
from mha_book.notation.softmax import recognise_softmax

__all__ = ["Bound", "bind"]


@dataclass(frozen=True)
class Bound:
    """A statement in which every sum is a node.

    Attributes:
        sides: the expressions of the chain, the left side first.
        free: the free indices, in the order of the left side.
        identity: whether the left side is more than a tensor or a derivative to be computed.
        source: the LaTeX, for errors.
    """

    sides: tuple[Expression, ...]
    free: tuple[str, ...]
    identity: bool = False
    source: str = field(default="", compare=False)


def bind(statement: Statement, *, strict: bool = False, broadcast: Iterable[str] = ()) -> Bound:
    r"""Apply the index rules to a statement.

    Args:
        statement: as the parser returns it.
        strict: read as Einstein did: every index that stands twice in a product is summed.
        broadcast: free indices that a term may lack.

    Returns:
        The statement with a :class:`~mha_book.notation.expression.Sum` for each implied sum.

    Raises:
        ValueError: if the statement breaks a rule; the message has a caret at the place.

    Example:
        >>> from mha_book.notation.parser import parse
        >>> (statement,) = parse(r"Q^{hia} = X^{ib} W_Q^{hba}")
        >>> bound = bind(statement)
        >>> bound.free, bound.sides[1].indices
        (('h', 'i', 'a'), ('b',))
    """
    left, *right = statement.sides
    free = free_indices(left)
    identity = not _is_target(left)
    checks = Checks(statement.source, left, free, identity, tuple(broadcast))
    for side in statement.sides:
        checks.sums(side, frozenset(free))
    checks.left_side(right)
    sides = [left]
    for side in right:
        for term in side.terms if isinstance(side, Add) else (side,):
            checks.term(term, strict)
        implied = [index for index in free_indices(side) if index not in free]
        checks.letters(side, implied)
        sides.append(_place(side, implied, statement.source))
    bound = tuple(recognise_softmax(side) for side in sides)
    return Bound(bound, free, identity, statement.source)


def _is_target(node: Expression) -> bool:
    if not isinstance(node, Tensor | Derivative):
        return False
    return not any(isinstance(index, Affine) for index in node.indices)


def _place(node: Expression, implied: list[str], source: str) -> Expression:
    """Return the node with the sums over these of its free indices put in."""
    if not implied:
        return node
    here = implied
    match node:
        case Add(terms):
            wanted = frozenset(implied)
            found = [[i for i in free_indices(term) if i in wanted] for term in terms]
            return Add(_place_each(terms, found, source), node.span)
        case Sum(indices, body):
            return Sum(indices, _place(body, implied, source), node.written, node.span)
        case Quotient(numerator, denominator):
            below = free_indices(denominator)
            for index in implied:
                if index in below:
                    above = index in free_indices(numerator)
                    what = "stands above and below the line of a quotient"
                    message = f"the index {index} {what if above else 'is summed in a denominator'}"
                    message = "ambiguous: " * above + message
                    fail_at(source, rf"{message}: write the \sum", denominator, index)
            return Quotient(_place(numerator, implied, source), denominator, node.span)
        case Function() | Power():
            what = f"the function {node.name}" if isinstance(node, Function) else "a power"
            message = f"the index {implied[0]} is summed inside {what}"
            fail_at(source, rf"{message}: write the \sum", node, implied[0])
        case Product(factors):
            here, found = _share(factors, implied)
            node = Product(_place_each(factors, found, source), node.span)
    return Sum(tuple(here), node, False, node.span) if here else node


def _share(
    factors: tuple[Expression, ...], implied: list[str]
) -> tuple[list[str], list[list[str]]]:
    """Return which indices are summed over the product, and which inside each factor."""
    holders: dict[str, list[int]] = {index: [] for index in implied}
    for number, factor in enumerate(factors):
        for index in free_indices(factor):
            if index in holders:
                holders[index].append(number)
    here: list[str] = []
    inside: list[list[str]] = [[] for _ in factors]
    for index, where in holders.items():
        if len(where) > 1 or not children(factors[where[0]]):
            here.append(index)
        else:
            inside[where[0]].append(index)
    return here, inside


def _place_each(
    nodes: tuple[Expression, ...], implied: list[list[str]], source: str
) -> tuple[Expression, ...]:
    return tuple(_place(n, indices, source) for n, indices in zip(nodes, implied, strict=True))
