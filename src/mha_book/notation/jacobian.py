r"""The derivative of an equation's left side by an operand: forwards, with Kronecker's deltas.

The tensor is replaced by a delta for each of its axes, which then runs through the equation:
:math:`\partial Q^{h'i'a'} / \partial W_Q^{hba} = \delta^{h'h} X^{i'b} \delta^{a'a}`.
"""

from fractions import Fraction

from mha_book.notation.derivative import (
    ONE,
    Assignment,
    Task,
    by_denominator,
    centred,
    find_task,
    slope,
    summed,
)
from mha_book.notation.expression import (
    Add,
    Delta,
    Derivative,
    Expression,
    Number,
    Product,
    Quotient,
    Softmax,
    Sum,
    Tensor,
    all_indices,
    children,
    free_indices,
    fresh,
    rename,
)
from mha_book.notation.simplify import simplify
from mha_book.notation.sums import split_term, spread, terms_of

__all__ = ["jacobian"]


def jacobian(equation: Assignment, name: str) -> tuple[Derivative, Expression]:
    r"""Return both sides of the equation for the derivative of the left side by an operand.

    Args:
        equation: has a tensor on the left.
        name: of a tensor on the right, in LaTeX or as a Python name.

    Returns:
        The derivative, in which the indices of the left side have a prime more than in the
        equation, and its value, with a delta for each axis that goes through from one to the
        other: :math:`\delta^{h'h} X^{i'b} \delta^{a'a}` for
        :math:`\partial Q^{h'i'a'} / \partial W_Q^{hba}`.

    Raises:
        ValueError: as for :func:`~mha_book.notation.gradient.adjoint`.

    Example:
        >>> from types import SimpleNamespace
        >>> x, w = Tensor("x", ("b",)), Tensor("W", ("b", "d"))
        >>> equation = SimpleNamespace(left=Tensor("y", ("d",)), right=Sum(("b",), Product((x, w))))
        >>> jacobian(equation, "W")[1].factors[1]
        Delta(first="d'", second='d', span=None)
    """
    task = find_task(equation, name)
    lower = set(free_indices(task.target))
    primed = {i: fresh(f"{i}'", lower) for i in free_indices(task.left)}
    upper = rename(task.left, primed)
    assert isinstance(upper, Tensor)
    task = Task(task.target, upper, rename(task.right, primed))
    tangent = simplify(_tangent(task.right, task), lower)
    terms = tuple(_ordered(term, free_indices(upper), lower) for term in terms_of(tangent))
    left = Derivative(upper, task.target)
    return left, spread(left, simplify(Add(terms), free_indices(left)))


def _tangent(node: Expression, task: Task) -> Expression:
    """Return the change of a node for a change of one entry of the tensor."""
    if not task.concerns(node):
        return Number(Fraction(0))
    match node:
        case Tensor():
            pairs = zip(node.indices, free_indices(task.target), strict=True)
            return Product((ONE, *(Delta(str(own), axis) for own, axis in pairs)))
        case Add(terms):
            return Add(tuple(_tangent(term, task) for term in terms))
        case Product(factors):
            changed = [
                Product((*factors[:n], _tangent(factor, task), *factors[n + 1 :]))
                for n, factor in enumerate(factors)
                if task.concerns(factor)
            ]
            return Add(tuple(changed))
        case Sum(own, body):
            taken = set(free_indices(task.target)) | all_indices(body)
            names: dict[str, str] = {}
            for s in (s for s in own if s in free_indices(task.target)):
                names[s] = fresh(s, taken | set(names.values()))
            indices = tuple(names.get(s, s) for s in own)
            return Sum(indices, _tangent(rename(body, names), task))
        case Softmax(argument, index, bound):
            weight = task.value(node)
            change = _tangent(argument, task)
            return Product((weight, centred(weight, change, index, bound)))
        case Quotient(above_line, below_line):
            first = Product((Quotient(ONE, below_line), _tangent(above_line, task)))
            second = Product((*by_denominator(node, task), _tangent(below_line, task)))
            return Add((first, second))
    (argument,) = children(node)
    return Product((slope(node, task), _tangent(argument, task)))


def _ordered(term: Expression, upper: tuple[str, ...], lower: set[str]) -> Expression:
    """Name by the lower index what a delta makes equal, and order factors by the upper ones."""
    number, indices, factors = split_term(term)
    deltas = [f for f in factors if isinstance(f, Delta) and {f.first, f.second} & lower]
    names = {d.first: d.second for d in deltas if d.first in upper and d.second in lower}
    plain = [f if f in deltas else rename(f, names) for f in factors]

    def place(factor: Expression) -> int:
        return min((upper.index(i) for i in free_indices(factor) if i in upper), default=-1)

    product = Product((Number(number), *sorted(plain, key=place)))
    return summed(indices, product)
