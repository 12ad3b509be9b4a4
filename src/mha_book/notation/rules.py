r"""The index rules: which indices are free, which are summed, and where.

1. An index on the left side is free. It has to stand in a right side.
2. An index that stands only on the right is summed. The sum reaches over the innermost product
   that contains every occurrence of the index in its term; a lone tensor is a product of one
   factor.
3. Inside a function, a power or a denominator a sum has to be written. An index that is free, or
   summed outside, may stand there.
4. A free index may stand in several factors: it is batch-like. The strict reading (Einstein's)
   does not allow it: there an index that stands twice in a product is summed, and a free index
   stands once in each term.
5. Every term of a right side has every free index, numbers apart. A term that is to be repeated
   along an index (a bias) is declared. Inside brackets and functions terms broadcast freely.
6. A written sum is over an index that its body has and that means nothing outside.
7. An index to be summed that stands in a numerator and in its denominator is ambiguous.

If the left side is no plain tensor or derivative, the statement is an identity: its free indices
are those of the left side that no written sum binds.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from mha_book.notation.errors import notation_error
from mha_book.notation.expression import (
    Add,
    Affine,
    Delta,
    Derivative,
    Expression,
    Function,
    Number,
    Power,
    Product,
    Quotient,
    Softmax,
    Span,
    Sum,
    Tensor,
    all_indices,
    children,
    free_indices,
    leaves,
    rebuild,
    rename,
)
from mha_book.notation.lexer import tokenize
from mha_book.notation.parser import Statement

__all__ = ["Bound", "bind", "index_span", "recognise_softmax"]


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
    return _Binder(statement, tuple(broadcast)).bind(strict)


def index_span(source: str, span: Span, index: str) -> Span:
    """Return where an index first stands in a part of the source, or the part if it does not."""
    if span is None:
        return None
    text = source[span[0] : span[1]]
    tokens = tokenize(text)
    upper, depth = text.startswith((r"\delta", r"\sum")), 0
    letter = index.rstrip("'")
    for number, token in enumerate(tokens):
        before = tokens[number - 1].text if number else ""
        depth += (token.text == "{") - (token.text == "}")
        if before == "^":
            upper, depth = True, int(token.text == "{")
        if upper and token.text == letter:
            end = number + 1
            while tokens[end].text == "'":
                end += 1
            if end - number - 1 == len(index) - len(letter):
                return span[0] + token.start, span[0] + tokens[end - 1].end
        if upper and not depth and before == "^":
            upper = False
        elif token.text == "}" and not depth:
            upper = False
    return span


def recognise_softmax(node: Expression) -> Expression:
    r"""Return the expression with each quotient that is a softmax as a node of its own."""
    node = rebuild(node, recognise_softmax)
    match node:
        case Quotient(Function("exp", argument), Sum((bound,), Function("exp", other))):
            ours, theirs = free_indices(argument), free_indices(other)
            lost = [index for index in ours if index not in theirs]
            if len(lost) == 1 and bound not in ours and bound in theirs:
                if rename(argument, {lost[0]: bound}) == other:
                    return Softmax(argument, lost[0], bound, node.span)
    return node


class _Binder:
    def __init__(self, statement: Statement, broadcast: tuple[str, ...]):
        self.source = statement.source
        self.left, *self.right = statement.sides
        self.broadcast = broadcast
        self.identity = not _is_target(self.left)
        self.free = free_indices(self.left)

    def bind(self, strict: bool) -> Bound:
        self._check_left()
        for side in (self.left, *self.right):
            self._check_sums(side, frozenset(self.free))
        sides = [self.left]
        for side in self.right:
            for term in side.terms if isinstance(side, Add) else (side,):
                self._check_term(term, strict)
            implied = [index for index in free_indices(side) if index not in self.free]
            self._check_letters(side, implied)
            sides.append(self._place(side, implied))
        bound = tuple(recognise_softmax(side) for side in sides)
        return Bound(bound, self.free, self.identity, self.source)

    def fail(self, message: str, node: Expression, index: str | None = None) -> NoReturn:
        span = node.span
        if index is not None:
            for leaf in (node, *leaves(node)):
                mine = _indices(leaf)
                if index in mine:
                    span = index_span(self.source, leaf.span, index)
                    break
        raise notation_error(message, self.source, span)

    def _check_left(self) -> None:
        for index in self.broadcast:
            if index not in self.free:
                names = ", ".join(self.free) or "none"
                message = f"broadcast={index!r} is no free index; these are: {names}"
                self.fail(message, self.left)
        parts: tuple[Expression, ...] = (self.left,)
        if isinstance(self.left, Derivative):
            parts = (self.left.upper, self.left.lower)
        for part in parts if not self.identity else ():
            for index, count in Counter(_indices(part)).items():
                if count > 1:
                    self.fail(f"the index {index} stands twice on the left side", part, index)
        present = set().union(*(free_indices(side) for side in self.right))
        for index in self.free if not self.identity else ():
            if index not in present:
                message = f"the index {index} of the left side stands nowhere on the right"
                self.fail(message, self.left, index)

    def _check_sums(self, node: Expression, outside: frozenset[str]) -> None:
        if isinstance(node, Sum):
            inside = free_indices(node.body)
            for index in node.indices:
                if index in outside:
                    what = "is free" if index in self.free else "is summed already"
                    self.fail(f"the index {index} {what}: name the sum's index anew", node, index)
                if index not in inside:
                    message = f"what is summed over {index} has no index {index}"
                    hint = "; subscripts belong to names, indices stand above"
                    self.fail(message + hint, node, index)
            outside |= set(node.indices)
        for child in children(node):
            self._check_sums(child, outside)

    def _check_term(self, term: Expression, strict: bool) -> None:
        mine = set(free_indices(term))
        for index in self.free:
            if index in mine or index in self.broadcast:
                continue
            if not all(isinstance(leaf, Number) for leaf in leaves(term)):
                message = f"this term lacks the free index {index}"
                self.fail(f"{message}: declare broadcast=({index!r},) to repeat it", term)
        if strict:
            for index, count in _count(term).items():
                self._check_strict(term, index, count)

    def _check_strict(self, term: Expression, index: str, count: int) -> None:
        times = {1: "once", 2: "twice"}.get(count, f"{count} times")
        if index in self.free and count > 1:
            message = (
                f"the index {index} stands {times} in a product and is not summed, for it is "
                "free: the strict reading sums every repeated index"
            )
            self.fail(message, term, index)
        if index not in self.free and count != 2:
            message = f"the index {index} stands {times} in a product and not on the left side"
            self.fail(f"{message}: the strict reading sums an index that stands twice", term, index)

    def _check_letters(self, side: Expression, implied: list[str]) -> None:
        """An implied index that is also the letter of a written sum misleads."""
        letters = all_indices(side) if implied else set()
        written = _written(side) if letters else {}
        for index in implied:
            if index in written:
                message = f"the index {index} of this sum stands outside of it too"
                self.fail(f"{message}: which does the sum reach? rename one", written[index], index)
            name = self.left.name if isinstance(self.left, Tensor) else ""
            if name.partition("_")[2].strip("{}") == index:
                message = f"the index {index} would be summed, but the left side's name holds it"
                self.fail(f"{message}: an index stands above the name", side, index)

    def _place(self, node: Expression, implied: list[str]) -> Expression:
        """Return the node with the sums over these of its free indices put in."""
        if not implied:
            return node
        here: list[str] = []
        match node:
            case Add(terms):
                return Add(tuple(self._within(term, implied) for term in terms), node.span)
            case Product(factors):
                found = [set(free_indices(factor)) for factor in factors]
                holders = {i: [n for n, own in enumerate(found) if i in own] for i in implied}
                down: dict[int, list[str]] = {}
                for index, where in holders.items():
                    if len(where) > 1 or not children(factors[where[0]]):
                        here.append(index)
                    else:
                        down.setdefault(where[0], []).append(index)
                placed = (self._place(f, down.get(n, [])) for n, f in enumerate(factors))
                node = Product(tuple(placed), node.span)
            case Quotient(numerator, denominator):
                for index in implied:
                    if index in free_indices(denominator):
                        self._denominator(numerator, denominator, index)
                return Quotient(self._place(numerator, implied), denominator, node.span)
            case Sum(indices, body):
                return Sum(indices, self._place(body, implied), node.written, node.span)
            case Function() | Power():
                what = f"the function {node.name}" if isinstance(node, Function) else "a power"
                message = f"the index {implied[0]} is summed inside {what}"
                self.fail(rf"{message}: write the \sum", node, implied[0])
            case _:
                here = implied
        return Sum(tuple(here), node, False, node.span) if here else node

    def _within(self, node: Expression, implied: list[str]) -> Expression:
        mine = set(free_indices(node))
        return self._place(node, [index for index in implied if index in mine])

    def _denominator(self, upper: Expression, lower: Expression, index: str) -> NoReturn:
        if index in free_indices(upper):
            message = f"ambiguous: the index {index} stands above and below the line of a quotient"
        else:
            message = f"the index {index} is summed inside a denominator"
        self.fail(rf"{message}: write the \sum", lower, index)


def _is_target(node: Expression) -> bool:
    tensor = isinstance(node, Tensor | Derivative)
    return tensor and not any(isinstance(index, Affine) for index in node.indices)


def _indices(node: Expression) -> tuple[str, ...]:
    """The indices that the node itself writes, as often as it does."""
    if isinstance(node, Tensor | Derivative):
        pairs = (i.indices if isinstance(i, Affine) else (i,) for i in node.indices)
        return tuple(index for pair in pairs for index in pair)
    if isinstance(node, Delta):
        return node.first, node.second
    return node.indices if isinstance(node, Sum) else ()


def _written(node: Expression) -> dict[str, Sum]:
    found = dict.fromkeys(node.indices, node) if isinstance(node, Sum) else {}
    for child in children(node):
        found = _written(child) | found
    return found


def _count(node: Expression) -> Counter[str]:
    """How often each index stands in a product, at most: the terms of a sum are alternatives."""
    if isinstance(node, Product):
        return sum((_count(factor) for factor in node.factors), Counter())
    if not children(node):
        return Counter(_indices(node))
    found: Counter[str] = Counter()
    for child in children(node):
        found |= _count(child)
    for index in node.indices if isinstance(node, Sum) else ():
        del found[index]
    return found
