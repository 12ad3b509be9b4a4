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

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

import mha_book.notation.expression as ex
from mha_book.notation.parser import Statement

__all__: list[str] = []

_INDEX = re.compile(r"\\[A-Za-z]+'*|[A-Za-z]'*")


@dataclass(frozen=True)
class Bound:
    """A statement in which every sum is a node."""

    sides: tuple[ex.Expression, ...]  # of the chain, the left side first
    free: tuple[str, ...]  # the free indices, in the order of the left side
    identity: bool = False  # whether the left is more than a tensor or derivative to be computed
    source: str = field(default="", compare=False)  # the LaTeX, for errors


def bind(statement: Statement, *, strict: bool = False, broadcast: Iterable[str] = ()) -> Bound:
    """Apply the index rules to a statement."""
    left, *right = statement.sides
    free = ex.free_indices(left)
    identity = not (isinstance(left, ex.Named) and ex.is_plain(left))
    checks = _Checks(statement.source, left, free, identity, tuple(broadcast))
    for side in statement.sides:
        checks.sums(side, frozenset(free))
    checks.left_side(right)
    sides = [left]
    for side in right:
        for term in side.terms if isinstance(side, ex.Add) else (side,):
            checks.term(term, strict)
        implied = [index for index in ex.free_indices(side) if index not in free]
        checks.letters(side, implied)
        sides.append(_place(side, implied, statement.source))
    bound = tuple(recognize_softmax(side) for side in sides)
    return Bound(bound, free, identity, statement.source)


def _place(node: ex.Expression, implied: list[str], source: str) -> ex.Expression:
    """Return the node with the sums over these of its free indices put in."""
    if not implied:
        return node
    here = implied
    match node:
        case ex.Add(terms):
            wanted = frozenset(implied)
            found = [[i for i in ex.free_indices(term) if i in wanted] for term in terms]
            return ex.Add(_place_each(terms, found, source), node.span)
        case ex.Sum(indices, body):
            return ex.Sum(indices, _place(body, implied, source), node.written, node.span)
        case ex.Quotient(numerator, denominator):
            below = ex.free_indices(denominator)
            for index in implied:
                if index in below:
                    above = index in ex.free_indices(numerator)
                    what = "stands above and below the line of a quotient"
                    message = f"the index {index} {what if above else 'is summed in a denominator'}"
                    message = "ambiguous: " * above + message
                    _fail_at(source, rf"{message}: write the \sum", denominator, index)
            return ex.Quotient(_place(numerator, implied, source), denominator, node.span)
        case ex.Function() | ex.Power():
            what = f"the function {node.name}" if isinstance(node, ex.Function) else "a power"
            message = f"the index {implied[0]} is summed inside {what}"
            _fail_at(source, rf"{message}: write the \sum", node, implied[0])
        case ex.Product(factors):
            here, found = _share(factors, implied)
            node = ex.Product(_place_each(factors, found, source), node.span)
    return ex.Sum(tuple(here), node, False, node.span) if here else node


def _share(
    factors: tuple[ex.Expression, ...], implied: list[str]
) -> tuple[list[str], list[list[str]]]:
    """Return which indices are summed over the product, and which inside each factor."""
    holders: dict[str, list[int]] = {index: [] for index in implied}
    for number, factor in enumerate(factors):
        for index in ex.free_indices(factor):
            if index in holders:
                holders[index].append(number)
    here: list[str] = []
    inside: list[list[str]] = [[] for _ in factors]
    for index, where in holders.items():
        if len(where) > 1 or not ex.children(factors[where[0]]):
            here.append(index)
        else:
            inside[where[0]].append(index)
    return here, inside


def _place_each(
    nodes: tuple[ex.Expression, ...], implied: list[list[str]], source: str
) -> tuple[ex.Expression, ...]:
    return tuple(_place(n, indices, source) for n, indices in zip(nodes, implied, strict=True))


@dataclass(frozen=True)
class _Checks:
    """What the rules refuse in one statement, with the caret at the place."""

    source: str
    left: ex.Expression
    free: tuple[str, ...]
    identity: bool  # the left side is more than a tensor or a derivative
    broadcast: tuple[str, ...]  # free indices that a term may lack

    def fail(self, message: str, node: ex.Expression, index: str | None = None) -> NoReturn:
        _fail_at(self.source, message, node, index)

    def left_side(self, right: list[ex.Expression]) -> None:
        """An index stands once in each tensor on the left, and somewhere on the right."""
        for index in self.broadcast:
            if index not in self.free:
                names = ", ".join(self.free) or "none"
                message = f"broadcast={index!r} is no free index; free here: {names}"
                self.fail(message, self.left)
        if self.identity:
            return
        parts: tuple[ex.Expression, ...] = (self.left,)
        if isinstance(self.left, ex.Derivative):
            parts = (self.left.upper, self.left.lower)
        for part in parts:
            for index, count in Counter(ex.written_indices(part)).items():
                if count > 1:
                    self.fail(f"the index {index} stands twice on the left side", part, index)
        present = set().union(*map(ex.free_indices, right))
        for index in self.free:
            if index not in present:
                message = f"the index {index} of the left side stands nowhere on the right"
                self.fail(message, self.left, index)

    def sums(self, node: ex.Expression, outside: frozenset[str]) -> None:
        """A written sum is over an index that its body has and that means nothing outside."""
        if isinstance(node, ex.Sum):
            inside = ex.free_indices(node.body)
            for index in node.indices:
                if index in outside:
                    what = "is free" if index in self.free else "is summed already"
                    self.fail(f"the index {index} {what}: name the sum's index anew", node, index)
                if index not in inside:
                    message = f"what is summed over {index} has no index {index}"
                    hint = "; subscripts belong to names, indices stand above"
                    self.fail(message + hint, node, index)
            outside |= set(node.indices)
        for child in ex.children(node):
            self.sums(child, outside)

    def term(self, term: ex.Expression, strict: bool) -> None:
        """A term of a right side has every free index, numbers apart."""
        mine = set(ex.free_indices(term))
        for index in self.free:
            if index in mine or index in self.broadcast:
                continue
            if not all(isinstance(leaf, ex.Number) for leaf in ex.leaves(term)):
                message = f"this term lacks the free index {index}"
                self.fail(f"{message}: declare broadcast=({index!r},) to repeat it", term)
        for index, count in _count(term).items() if strict else ():
            times = {1: "once", 2: "twice"}.get(count, f"{count} times")
            message = f"the index {index} stands {times} in a product and"
            if index in self.free and count > 1:
                message += " is not summed, for it stands on the left side too"
                self.fail(f"{message}: the strict reading sums what is repeated", term, index)
            if index not in self.free and count != 2:
                message += " is not on the left side"
                self.fail(f"{message}: the strict reading sums what stands twice", term, index)

    def letters(self, side: ex.Expression, implied: list[str]) -> None:
        """An index is summed by a sign or by implication, and is no letter of the left name."""
        written: dict[str, ex.Sum] = {}
        for node in ex.walk(side):
            if isinstance(node, ex.Sum):
                written |= dict.fromkeys(node.indices, node) | written
        subscript = self.left.name.partition("_")[2] if isinstance(self.left, ex.Tensor) else ""
        for index in implied:
            if index in written:
                message = f"the index {index} of this sum stands outside of it too"
                self.fail(f"{message}: which does the sum reach? rename one", written[index], index)
            if subscript.strip("{}") == index:
                message = f"the index {index} would be summed, but the left side's name holds it"
                self.fail(f"{message}: an index stands above the name", side, index)


def _count(node: ex.Expression) -> Counter[str]:
    """How often each index stands in a product, at most: the terms of a sum are alternatives."""
    found: Counter[str] = Counter()
    if not ex.children(node):
        found.update(ex.written_indices(node))
    for child in ex.children(node):
        if isinstance(node, ex.Product):
            found.update(_count(child))
        else:
            found |= _count(child)
    for index in node.indices if isinstance(node, ex.Sum) else ():
        del found[index]
    return found


def recognize_softmax(node: ex.Expression) -> ex.Expression:
    r"""Return the expression with each quotient that is a softmax as a node of its own.

    :math:`\exp E^j / \sum_{j'} \exp E^{j'}` is one if both arguments are the same up to j and j'.
    """
    node = ex.rebuild(node, recognize_softmax)
    match node:
        case ex.Quotient(ex.Function("exp", argument), ex.Sum((bound,), ex.Function("exp", other))):
            ours, theirs = ex.free_indices(argument), ex.free_indices(other)
            lost = [index for index in ours if index not in theirs]
            fits = len(lost) == 1 and bound not in ours and bound in theirs
            if fits and ex.rename(argument, {lost[0]: bound}) == other:
                return ex.Softmax(argument, lost[0], bound, node.span)
    return node


def _index_span(source: str, node: ex.Expression, index: str) -> ex.Span:
    """Return where an index first stands in the source of an expression.

    Where it does not, or nothing is known, the span of the expression itself is returned.
    """
    if isinstance(node, ex.Derivative):
        parts = [part for part in (node.upper, node.lower) if index in ex.written_indices(part)]
        return _index_span(source, parts[0], index) if parts else node.span
    if index in ex.written_indices(node) and node.span:
        start, end = node.span
        if isinstance(node, ex.Tensor):
            start = max(start, source.find("^", start, end))
        for piece in _INDEX.finditer(source, start, end):
            if piece.group() == index:
                return piece.span()
    for child in ex.children(node):
        span = _index_span(source, child, index)
        if span != child.span:
            return span
    return node.span


def _fail_at(source: str, message: str, node: ex.Expression, index: str | None = None) -> NoReturn:
    """Raise an error with the caret under an expression, or under an index in it."""
    span = node.span if index is None else _index_span(source, node, index)
    raise ex.notation_error(message, source, span)
