"""What both directions of differentiation share: the task, and the slopes of functions."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

from mha_book.notation.expression import (
    Add,
    Derivative,
    Expression,
    Function,
    Number,
    Power,
    Product,
    Quotient,
    Sum,
    Tensor,
    all_indices,
    free_indices,
    fresh,
    key,
    leaves,
    rename,
)

__all__ = ["Assignment", "Task", "by_denominator", "centred", "find_task", "slope", "summed"]

ONE, _MINUS, _TWO = (Number(Fraction(value)) for value in (1, -1, 2))


@runtime_checkable
class Assignment(Protocol):
    """What is differentiated: a tensor on the left, an expression on the right."""

    @property
    def left(self) -> Expression:
        """The tensor that the equation defines."""

    @property
    def right(self) -> Expression:
        """The expression that it is equal to."""


@dataclass(frozen=True)
class Task:
    """What is differentiated by what.

    Attributes:
        target: the tensor, with the indices that it has in the derivative.
        left: the tensor on the left.
        right: what it is equal to, so that it may be written as ``left``.
    """

    target: Tensor
    left: Tensor
    right: Expression

    def concerns(self, node: Expression) -> bool:
        """Whether the tensor stands in the expression."""
        own = key(self.target.name)
        return any(isinstance(leaf, Tensor) and key(leaf.name) == own for leaf in leaves(node))

    def value(self, node: Expression) -> Expression:
        """The left tensor for the right side, and any other expression itself."""
        plain = all(isinstance(index, str) for index in self.left.indices)
        axes = sorted(map(str, self.left.indices)) == sorted(free_indices(node))
        return self.left if node == self.right and plain and axes else node


def find_task(equation: Assignment, name: str) -> Task:
    """Find the tensor that is asked for, and name its axes."""
    left, right = equation.left, equation.right
    if not isinstance(left, Tensor):
        what = "a derivative" if isinstance(left, Derivative) else "an expression"
        raise ValueError(
            f"{name}: expected an equation with a tensor on its left, got {what}: "
            "only what a tensor is equal to can be differentiated"
        )
    found = [leaf for leaf in leaves(right) if isinstance(leaf, Tensor | Derivative)]
    places = [leaf for leaf in found if key(leaf.name) == key(name)]
    if not places:
        known = ", ".join(dict.fromkeys(leaf.name for leaf in found)) or "none"
        raise ValueError(f"{name}: expected a tensor of the right side ({known})")
    for place in places:
        if isinstance(place, Derivative):
            raise ValueError(f"{name}: expected a tensor, got a derivative: it has no second one")
        if not all(isinstance(index, str) for index in place.indices):
            raise ValueError(
                f"{name}: a computed position has no index of its own, so that a derivative by "
                f"the entry at this position cannot be named; write {name} with an index for "
                "each axis, and the split of an axis as an equation before this one"
            )
    first = next((p for p in places if len(set(p.indices)) == len(p.indices)), places[0])
    assert isinstance(first, Tensor)
    taken = all_indices(right) | all_indices(left)
    axes: list[str] = []
    for index in first.indices:
        assert isinstance(index, str)
        axes.append(fresh(index, taken | set(axes)) if index in axes else index)
    return Task(Tensor(first.name, tuple(axes)), left, right)


def centred(weight: Expression, change: Expression, index: str, bound: str) -> Expression:
    r"""Return :math:`C^j - \sum_{j'} A^{j'} C^{j'}`."""
    other = fresh(bound, all_indices(weight) - {bound} | all_indices(change))
    there = {index: other}
    mean = Sum((other,), Product((rename(weight, there), rename(change, there))))
    return Add((change, Product((_MINUS, mean))))


def by_denominator(node: Quotient, task: Task) -> tuple[Expression, ...]:
    """Return the factors of the derivative of a quotient by its denominator."""
    value = task.value(node)
    if value is not node:
        return _MINUS, Quotient(value, node.denominator)
    return _MINUS, Quotient(node.numerator, Power(node.denominator, Fraction(2)))


def slope(node: Expression, task: Task) -> Expression:
    """Return the derivative of a power or of a function by its argument."""
    value = task.value(node)
    match node:
        case Power(base, exponent):
            return Product((Number(exponent), Power(base, exponent - 1)))
        case Function("exp"):
            return value
        case Function("log", argument):
            return Quotient(ONE, argument)
        case Function("sqrt"):
            return Quotient(ONE, Product((_TWO, value)))
        case Function("tanh"):
            return Add((ONE, Product((_MINUS, Power(value, Fraction(2))))))
        case Function("sin", argument):
            return Function("cos", argument)
        case Function("cos", argument):
            return Product((_MINUS, Function("sin", argument)))
    raise ValueError(f"{node}: expected a power or a function whose derivative is known")


def summed(indices: tuple[str, ...], body: Expression) -> Expression:
    """Return the sum over the indices, which may be none."""
    return Sum(indices, body) if indices else body
