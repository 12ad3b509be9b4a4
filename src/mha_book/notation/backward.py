r"""The backward pass of a system of equations, as equations.

Backwards through the equations, each operand receives a contribution from every equation that
uses it; :math:`\partial L / \partial X` is the sum of them all.
"""

from collections.abc import Collection, Sequence

from mha_book.notation.equation import Equation
from mha_book.notation.expression import (
    Add,
    Derivative,
    Expression,
    Tensor,
    free_indices,
    key,
    rename,
)
from mha_book.notation.gradient import adjoint, lacking, spread
from mha_book.notation.simplify import simplify

__all__ = ["derive"]


def derive(
    equations: Sequence[Equation], output: str, wrt: Collection[str], loss: str
) -> list[Equation]:
    """Return the equations of the derivatives of a loss, in the order in which they can run.

    Args:
        equations: each defines a tensor; one that uses another stands after it.
        output: the Python name of the tensor by which the derivative of the loss is given.
        wrt: the Python names of the inputs whose derivatives are wanted.
        loss: the name of the loss.

    Returns:
        One equation for each input in ``wrt``, and for each tensor between them and the output.

    Raises:
        ValueError: the output does not depend on an input in ``wrt``.
    """
    path = _between(equations, output, wrt)
    defined = {key(_left(equation).name): _left(equation) for equation in path}
    wanted = {*wrt, *defined}
    parts: dict[str, list[tuple[Derivative, Expression]]] = {}
    users = {name: [e for e in path if name in e.operands] for name in wanted}
    idle = [name for name in wrt if not users[name]]
    if idle:
        raise ValueError(f"{', '.join(idle)}: expected names on which {output} depends")
    found = []
    for equation in reversed(path):
        for name in equation.operands:
            if name not in wanted:
                continue
            parts.setdefault(name, []).append(adjoint(equation, name, loss=loss))
            if users[name][0] is equation:  # no equation before this one adds to it
                found.append(_added(parts[name][::-1], defined.get(name)))
    return found


def _left(equation: Equation) -> Tensor:
    assert isinstance(equation.left, Tensor)
    return equation.left


def _between(equations: Sequence[Equation], output: str, wrt: Collection[str]) -> list[Equation]:
    """Return the equations that lie between the inputs and the output."""
    reached = set(wrt)
    forward = []
    for equation in equations:
        if reached & equation.operands.keys():
            reached.add(key(_left(equation).name))
            forward.append(equation)
    needed = {output}
    path: list[Equation] = []
    for equation in reversed(forward):
        if key(_left(equation).name) in needed:
            needed |= equation.operands.keys()
            path.insert(0, equation)
    return path


def _added(parts: Sequence[tuple[Derivative, Expression]], left: Tensor | None) -> Equation:
    """Add the contributions, with the indices of the tensor's own equation where it has one."""
    derivative = parts[0][0]
    lower = derivative.lower
    if left is not None and all(isinstance(index, str) for index in left.indices):
        lower = Tensor(lower.name, left.indices)
    terms = []
    for part, value in parts:
        names = {str(a): str(b) for a, b in zip(part.lower.indices, lower.indices, strict=True)}
        terms.append(rename(value, names))
    whole = Derivative(derivative.upper, lower)
    sides = (whole, spread(whole, simplify(Add(tuple(terms)), free_indices(whole))))
    return Equation.from_sides(sides, broadcast=lacking(*sides))
