r"""The derivative of an equation by one of its operands, as another equation.

:func:`gradient` takes the derivative of a loss L by the left side and pushes it through the right
side, backwards, to the tensor that is asked for. For a product the other factors come in front; for
a function its slope; for the softmax, with :math:`C^j = \partial L / \partial A^j`,
:math:`\partial L / \partial S^j = A^j ( C^j - \sum_{j'} A^{j'} C^{j'} )`.

:func:`jacobian` goes forwards: the tensor is replaced by a Kronecker delta for each of its axes,
which then runs through the equation:
:math:`\partial Q^{h'i'a'} / \partial W_Q^{hba} = \delta^{h'h} X^{i'b} \delta^{a'a}`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from mha_book.notation.expression import (
    Add,
    Delta,
    Derivative,
    Expression,
    Function,
    Number,
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
    is_plain,
    key,
    leaves,
    rename,
)
from mha_book.notation.simplify import simplify, split_term, spread, terms_of

__all__ = ["gradient", "jacobian"]


_ONE, _MINUS, _TWO = (Number(Fraction(value)) for value in (1, -1, 2))


# What both directions share: the task, and the slopes of functions.


@dataclass(frozen=True)
class _Task:
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
        axes = sorted(map(str, self.left.indices)) == sorted(free_indices(node))
        return self.left if node == self.right and is_plain(self.left) and axes else node


def _find_task(left: Expression, right: Expression, name: str) -> _Task:
    """Find the tensor that is asked for, and name its axes."""
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
        if not is_plain(place):
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
    return _Task(Tensor(first.name, tuple(axes)), left, right)


def _centered(weight: Expression, change: Expression, index: str, bound: str) -> Expression:
    r"""Return :math:`C^j - \sum_{j'} A^{j'} C^{j'}`."""
    other = fresh(bound, all_indices(weight) - {bound} | all_indices(change))
    there = {index: other}
    mean = Sum((other,), Product((rename(weight, there), rename(change, there))))
    return Add((change, Product((_MINUS, mean))))


def _by_denominator(node: Quotient, task: _Task) -> tuple[Expression, ...]:
    """Return the factors of the derivative of a quotient by its denominator."""
    value = task.value(node)
    if value is not node:
        return _MINUS, Quotient(value, node.denominator)
    return _MINUS, Quotient(node.numerator, Power(node.denominator, Fraction(2)))


def _slope(node: Expression, task: _Task) -> Expression:
    """Return the derivative of a power or of a function by its argument."""
    value = task.value(node)
    match node:
        case Power(base, exponent):
            return Product((Number(exponent), Power(base, exponent - 1)))
        case Function("exp"):
            return value
        case Function("log", argument):
            return Quotient(_ONE, argument)
        case Function("sqrt"):
            return Quotient(_ONE, Product((_TWO, value)))
        case Function("tanh"):
            return Add((_ONE, Product((_MINUS, Power(value, Fraction(2))))))
        case Function("sin", argument):
            return Function("cos", argument)
        case Function("cos", argument):
            return Product((_MINUS, Function("sin", argument)))
    raise ValueError(f"{node}: expected a power or a function whose derivative is known")


def _summed(indices: tuple[str, ...], body: Expression) -> Expression:
    """Return the sum over the indices, which may be none."""
    return Sum(indices, body) if indices else body


# Backwards: the gradient of a loss.


def gradient(
    left: Expression, right: Expression, name: str, *, loss: str = "L"
) -> tuple[Derivative, Expression]:
    r"""Return both sides of the equation for the derivative of a loss by an operand.

    Args:
        left: what an equation defines, a tensor.
        right: what it is equal to.
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
        >>> x, w = Tensor("x", ("b",)), Tensor("W", ("b", "d"))
        >>> left, right = gradient(Tensor("y", ("d",)), Sum(("b",), Product((x, w))), "W")
        >>> left.name, left.indices, [factor.name for factor in right.factors]
        ('dL/dW', ('b', 'd'), ['x', 'dL/dy'])
    """
    task = _find_task(left, right, name)
    seed = (Derivative(Tensor(loss), task.left),)
    parts = [
        _collected(*part, task) for part in _push(task.right, seed, free_indices(task.left), task)
    ]
    whole = Derivative(Tensor(loss), task.target)
    return whole, spread(whole, simplify(Add(tuple(parts)), free_indices(whole)))


_Part = tuple[Tensor, tuple[Expression, ...], tuple[str, ...]]


def _push(
    node: Expression, seed: tuple[Expression, ...], scope: tuple[str, ...], task: _Task
) -> Iterator[_Part]:
    """Push the derivative by a node down to the tensor.

    The change of the loss is the sum over ``scope`` of the product of ``seed`` and the change of
    the node. The last factor of the seed is the derivative that came from above.
    """
    if not task.concerns(node):
        return
    match node:
        case Tensor():
            yield node, seed, scope
        case Add(terms):
            for term in terms:
                yield from _push(term, seed, scope, task)
        case Product(factors):
            for n, factor in enumerate(factors):
                yield from _push(factor, _after(seed, *factors[:n], *factors[n + 1 :]), scope, task)
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
            came = _summed(rest, Product(seed))
            if index in free_indices(came):
                weight = task.value(node)
                change = _centered(weight, came, index, bound)
                yield from _push(argument, (weight, change), scope, task)
        case Quotient(above_line, below_line):
            inverse = Quotient(_ONE, below_line)
            yield from _push(above_line, _after(seed, inverse), scope, task)
            yield from _push(below_line, _after(seed, *_by_denominator(node, task)), scope, task)
        case Power() | Function():
            (argument,) = children(node)
            yield from _push(argument, _after(seed, _slope(node, task)), scope, task)


def _after(seed: tuple[Expression, ...], *factors: Expression) -> tuple[Expression, ...]:
    """Put further factors in front of the derivative from above, those without axes first."""
    *before, above = seed
    both = (*before, *factors)
    scalars = [factor for factor in both if not all_indices(factor)]
    return (*scalars, *(factor for factor in both if all_indices(factor)), above)


def _collected(
    leaf: Tensor, seed: tuple[Expression, ...], scope: tuple[str, ...], task: _Task
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
    total = _summed(tuple(s for s in scope if s not in own), Product(seed))
    return Product((*deltas, rename(total, names)))


# Forwards: the derivative of each element by each.


def jacobian(left: Expression, right: Expression, name: str) -> tuple[Derivative, Expression]:
    r"""Return both sides of the equation for the derivative of the left side by an operand.

    Args:
        left: what an equation defines, a tensor.
        right: what it is equal to.
        name: of a tensor on the right, in LaTeX or as a Python name.

    Returns:
        The derivative, in which the indices of the left side have a prime more than in the
        equation, and its value, with a delta for each axis that goes through from one to the
        other: :math:`\delta^{h'h} X^{i'b} \delta^{a'a}` for
        :math:`\partial Q^{h'i'a'} / \partial W_Q^{hba}`.

    Raises:
        ValueError: as for :func:`gradient`.

    Example:
        >>> x, w = Tensor("x", ("b",)), Tensor("W", ("b", "d"))
        >>> jacobian(Tensor("y", ("d",)), Sum(("b",), Product((x, w))), "W")[1].factors[1]
        Delta(first="d'", second='d', span=None)
    """
    task = _find_task(left, right, name)
    lower = set(free_indices(task.target))
    primed = {i: fresh(f"{i}'", lower) for i in free_indices(task.left)}
    upper = rename(task.left, primed)
    assert isinstance(upper, Tensor)
    task = _Task(task.target, upper, rename(task.right, primed))
    tangent = simplify(_tangent(task.right, task), lower)
    terms = tuple(_ordered(term, free_indices(upper), lower) for term in terms_of(tangent))
    whole = Derivative(upper, task.target)
    return whole, spread(whole, simplify(Add(terms), free_indices(whole)))


def _tangent(node: Expression, task: _Task) -> Expression:
    """Return the change of a node for a change of one entry of the tensor."""
    if not task.concerns(node):
        return Number(Fraction(0))
    match node:
        case Tensor():
            pairs = zip(node.indices, free_indices(task.target), strict=True)
            return Product((_ONE, *(Delta(str(own), axis) for own, axis in pairs)))
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
            return Product((weight, _centered(weight, change, index, bound)))
        case Quotient(above_line, below_line):
            first = Product((Quotient(_ONE, below_line), _tangent(above_line, task)))
            second = Product((*_by_denominator(node, task), _tangent(below_line, task)))
            return Add((first, second))
    (argument,) = children(node)
    return Product((_slope(node, task), _tangent(argument, task)))


def _ordered(term: Expression, upper: tuple[str, ...], lower: set[str]) -> Expression:
    """Name by the lower index what a delta makes equal, and order factors by the upper ones."""
    number, indices, factors = split_term(term)
    deltas = [f for f in factors if isinstance(f, Delta) and {f.first, f.second} & lower]
    names = {d.first: d.second for d in deltas if d.first in upper and d.second in lower}
    plain = [f if f in deltas else rename(f, names) for f in factors]

    def place(factor: Expression) -> int:
        return min((upper.index(i) for i in free_indices(factor) if i in upper), default=-1)

    product = Product((Number(number), *sorted(plain, key=place)))
    return _summed(indices, product)
