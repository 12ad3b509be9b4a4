r"""The derivative of a loss by an operand of an equation, as another equation.

The derivative of a loss L by the left side is pushed through the right side, backwards, to the
tensor that is asked for. For a product the other factors come in front; for a function its slope;
for the softmax, with :math:`C^j = \partial L / \partial A^j`,

.. math:: \frac{\partial L}{\partial S^j} = A^j \Bigl( C^j - \sum_{j'} A^{j'} C^{j'} \Bigr).
"""

from collections.abc import Iterator

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
    Function,
    Power,
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
from mha_book.notation.jacobian import jacobian
from mha_book.notation.simplify import simplify
from mha_book.notation.sums import lacking, spread

__all__ = ["adjoint", "jacobian", "lacking", "spread"]


def adjoint(equation: Assignment, name: str, *, loss: str = "L") -> tuple[Derivative, Expression]:
    r"""Return both sides of the equation for the derivative of a loss by an operand.

    Args:
        equation: has a tensor on the left.
        name: of a tensor on the right, in LaTeX or as a Python name. Where it occurs several
            times, the contributions of all occurrences are added.
        loss: the name of L.

    Returns:
        The derivative, with the indices of the tensor's first occurrence, and what it is equal
        to: in it stand the derivative by the left side, the operands, and the left tensor
        itself where the derivative is shorter with it, as for a softmax.

    Raises:
        ValueError: the left is no tensor, the right has no such tensor, or the tensor has a
            computed position such as :math:`X^{i(hH+a)}`.

    Example:
        >>> from types import SimpleNamespace
        >>> x, w = Tensor("x", ("b",)), Tensor("W", ("b", "d"))
        >>> equation = SimpleNamespace(left=Tensor("y", ("d",)), right=Sum(("b",), Product((x, w))))
        >>> left, right = adjoint(equation, "W")
        >>> left.name, left.indices, [factor.name for factor in right.factors]
        ('dL/dW', ('b', 'd'), ['x', 'dL/dy'])
    """
    task = find_task(equation, name)
    seed = (Derivative(Tensor(loss), task.left),)
    parts = [
        _collected(*part, task) for part in _push(task.right, seed, free_indices(task.left), task)
    ]
    left = Derivative(Tensor(loss), task.target)
    return left, spread(left, simplify(Add(tuple(parts)), free_indices(left)))


Part = tuple[Tensor, tuple[Expression, ...], tuple[str, ...]]


def _push(
    node: Expression, seed: tuple[Expression, ...], scope: tuple[str, ...], task: Task
) -> Iterator[Part]:
    """Push the derivative by a node down to the tensor.

    The change of the loss is the sum over ``scope`` of the product of ``seed`` and the change of
    the node. The last factor of the seed is the derivative that came from above.
    """
    if not task.concerns(node):
        return
    *before, above = seed

    def after(*factors: Expression) -> tuple[Expression, ...]:
        """Put further factors in front of the derivative from above, those without axes first."""
        both = (*before, *factors)
        scalars = [factor for factor in both if not all_indices(factor)]
        return (*scalars, *(factor for factor in both if all_indices(factor)), above)

    match node:
        case Tensor():
            yield node, seed, scope
        case Add(terms):
            for term in terms:
                yield from _push(term, seed, scope, task)
        case Product(factors):
            for n, factor in enumerate(factors):
                yield from _push(factor, after(*factors[:n], *factors[n + 1 :]), scope, task)
        case Sum(own, body):
            taken = set(scope).union(*map(all_indices, seed))
            names: dict[str, str] = {}
            for s in own:
                names[s] = fresh(s, taken | (all_indices(body) - {s}) | set(names.values()))
            opened = scope + tuple(names.values())
            yield from _push(rename(body, names), seed, opened, task)
        case Softmax(argument, index, bound):
            rest = tuple(s for s in scope if s not in free_indices(node))
            scope = tuple(s for s in scope if s not in rest)
            came = summed(rest, Product(seed))
            if index in free_indices(came):
                weight = task.value(node)
                change = centred(weight, came, index, bound)
                yield from _push(argument, (weight, change), scope, task)
        case Quotient(above_line, below_line):
            inverse = Quotient(ONE, below_line)
            yield from _push(above_line, after(inverse), scope, task)
            yield from _push(below_line, after(*by_denominator(node, task)), scope, task)
        case Power() | Function():
            (argument,) = children(node)
            yield from _push(argument, after(slope(node, task)), scope, task)


def _collected(
    leaf: Tensor, seed: tuple[Expression, ...], scope: tuple[str, ...], task: Task
) -> Expression:
    """Sum the seed over all indices but the tensor's, and give these the names of its axes."""
    own = [index for index in leaf.indices if isinstance(index, str)]
    axes = free_indices(task.target)
    names: dict[str, str] = {}
    deltas = []
    for index, axis in zip(own, axes, strict=True):
        if index in names:
            deltas.append(Delta(names[index], axis))
        names.setdefault(index, axis)
    total = summed(tuple(s for s in scope if s not in own), Product(seed))
    return Product((*deltas, rename(total, names)))
