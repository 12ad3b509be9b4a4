"""What the index rules refuse, with the caret at the place."""

from collections import Counter
from dataclasses import dataclass
from typing import NoReturn

from mha_book.notation.expression import (
    Derivative,
    Expression,
    Number,
    Product,
    Sum,
    Tensor,
    children,
    free_indices,
    leaves,
)
from mha_book.notation.places import fail_at, written_indices

__all__ = ["Checks"]


@dataclass(frozen=True)
class Checks:
    """The checks of one statement.

    Attributes:
        source: the LaTeX.
        left: the left side.
        free: its free indices.
        identity: whether the left side is more than a tensor or a derivative.
        broadcast: free indices that a term may lack.
    """

    source: str
    left: Expression
    free: tuple[str, ...]
    identity: bool
    broadcast: tuple[str, ...]

    def fail(self, message: str, node: Expression, index: str | None = None) -> NoReturn:
        """Raise an error with the caret under an expression, or under an index in it."""
        fail_at(self.source, message, node, index)

    def left_side(self, right: list[Expression]) -> None:
        """An index stands once in each tensor on the left, and somewhere on the right."""
        for index in self.broadcast:
            if index not in self.free:
                names = ", ".join(self.free) or "none"
                message = f"broadcast={index!r} is no free index; free here: {names}"
                self.fail(message, self.left)
        if self.identity:
            return
        parts: tuple[Expression, ...] = (self.left,)
        if isinstance(self.left, Derivative):
            parts = (self.left.upper, self.left.lower)
        for part in parts:
            for index, count in Counter(written_indices(part)).items():
                if count > 1:
                    self.fail(f"the index {index} stands twice on the left side", part, index)
        present = set().union(*map(free_indices, right))
        for index in self.free:
            if index not in present:
                message = f"the index {index} of the left side stands nowhere on the right"
                self.fail(message, self.left, index)

    def sums(self, node: Expression, outside: frozenset[str]) -> None:
        """A written sum is over an index that its body has and that means nothing outside."""
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
            self.sums(child, outside)

    def term(self, term: Expression, strict: bool) -> None:
        """A term of a right side has every free index, numbers apart."""
        mine = set(free_indices(term))
        for index in self.free:
            if index in mine or index in self.broadcast:
                continue
            if not all(isinstance(leaf, Number) for leaf in leaves(term)):
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

    def letters(self, side: Expression, implied: list[str]) -> None:
        """An index is summed by a sign or by implication, and is no letter of the left name."""
        written: dict[str, Sum] = {}
        if implied:
            _collect_sums(side, written)
        subscript = self.left.name.partition("_")[2] if isinstance(self.left, Tensor) else ""
        for index in implied:
            if index in written:
                message = f"the index {index} of this sum stands outside of it too"
                self.fail(f"{message}: which does the sum reach? rename one", written[index], index)
            if subscript.strip("{}") == index:
                message = f"the index {index} would be summed, but the left side's name holds it"
                self.fail(f"{message}: an index stands above the name", side, index)


def _collect_sums(node: Expression, found: dict[str, Sum]) -> None:
    if isinstance(node, Sum):
        for index in node.indices:
            found.setdefault(index, node)
    for child in children(node):
        _collect_sums(child, found)


def _count(node: Expression) -> Counter[str]:
    """How often each index stands in a product, at most: the terms of a sum are alternatives."""
    found: Counter[str] = Counter()
    if not children(node):
        found.update(written_indices(node))
    for child in children(node):
        if isinstance(node, Product):
            found.update(_count(child))
        else:
            found |= _count(child)
    for index in node.indices if isinstance(node, Sum) else ():
        del found[index]
    return found
