r"""The derivative of an equation by one of its operands, as another equation.

:func:`gradient` takes the derivative of a loss L by the left side and pushes it through the right
side, backwards, to the tensor that is asked for. For a product the other factors come in front; for
a function its slope; for the softmax, with :math:`C^j = \partial L / \partial A^j`,
:math:`\partial L / \partial S^j = A^j ( C^j - \sum_{j'} A^{j'} C^{j'} )`.

:func:`jacobian` goes forwards: the tensor is replaced by a Kronecker delta for each of its axes,
which then runs through the equation:
:math:`\partial Q^{h'i'a'} / \partial W_Q^{hba} = \delta^{h'h} X^{i'b} \delta^{a'a}`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
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
    rebuild,
    rename,
)

__all__: list[str] = []


def simplify(expression: Expression, outside: Iterable[str] = ()) -> Expression:
    """Return an expression of the same value in its shortest form.

    No bound index has the name of one in whose reach it stands, or of one outside.
    """
    reduced = _reduce(expression)
    distinct = _distinct(reduced, frozenset((*free_indices(reduced), *outside)))
    terms = tuple(_marked(term, True) for term in terms_of(distinct))
    return Add(terms) if len(terms) > 1 else terms[0]


def _reduce(node: Expression) -> Expression:
    node = rebuild(node, _reduce)
    match node:
        case Product(factors):
            return _product(factors)
        case Add(terms):
            return _add(terms)
        case Sum(indices, body):
            return _sum(indices, body)
        case Quotient(Number(above), Number(below)) if below:
            return Number(above / below)
        case Quotient(above, Number(below)) if below:
            return _product((Number(1 / below), above))
        case Power(Function("sqrt", base), exponent) if exponent == 2:
            return base
        case Power(base, exponent) if exponent == 1:
            return base
        case Power(_, exponent) if exponent == 0:
            return Number(Fraction(1))
    return node


def _product(factors: Iterable[Expression]) -> Expression:
    """Multiply reduced factors: one number in front, then no products and no sums among them."""
    flat: list[Expression] = []
    summed: list[str] = []
    queue = list(factors)
    taken = set().union(*(set(free_indices(factor)) for factor in queue))
    number = Fraction(1)
    while queue:
        factor = queue.pop(0)
        if isinstance(factor, Product):
            queue[:0] = factor.factors
        elif isinstance(factor, Number):
            number *= factor.value
        elif isinstance(factor, Sum):
            within = all_indices(factor.body)
            names = {s: fresh(s, taken | (within - {s})) for s in factor.indices if s in taken}
            own = [names.get(s, s) for s in factor.indices]
            summed += own
            taken |= set(own)
            queue.insert(0, rename(factor.body, names))
        else:
            flat.append(factor)
    # A delta of an index with itself is one wherever something else has the index too.
    for trace in [f for f in flat if isinstance(f, Delta) and f.first == f.second]:
        rest = list(flat)
        rest.remove(trace)
        if any(trace.first in free_indices(factor) for factor in rest):
            flat = rest
    if number == 0:
        return Number(number)
    if number != 1 or not flat:
        flat.insert(0, Number(number))
    product = flat[0] if len(flat) == 1 else Product(tuple(flat))
    return _sum(tuple(summed), product) if summed else product


def _sum(indices: tuple[str, ...], body: Expression) -> Expression:
    """Sum a reduced body: deltas with a summed index are eliminated."""
    if isinstance(body, Sum):
        indices, body = indices + body.indices, body.body
    if body == Number(Fraction(0)):
        return body
    if isinstance(body, Add) and any(_has_delta(term) for term in body.terms):
        return _add([_sum(indices, term) for term in body.terms])
    factors = list(body.factors) if isinstance(body, Product) else [body]
    for delta in [factor for factor in factors if isinstance(factor, Delta)]:
        summed = [s for s in (delta.second, delta.first) if s in indices]
        if summed and delta.first != delta.second:
            gone = summed[0]
            kept = delta.first if gone == delta.second else delta.second
            factors.remove(delta)
            rest = _product([rename(f, {gone: kept}) for f in factors])
            left = tuple(s for s in indices if s != gone)
            return _sum(left, rest) if left else rest
    missing = [s for s in indices if s not in free_indices(body)]
    if missing:  # the sum of something that lacks the index counts its values
        body = _product([*(Delta(s, s) for s in missing), *factors])
    return Sum(indices, body) if indices else body


def _has_delta(node: Expression) -> bool:
    factors = split_term(node)[2]
    return any(isinstance(factor, Delta) for factor in factors)


def _add(terms: Iterable[Expression]) -> Expression:
    """Add reduced terms: like terms are counted, deltas that all of them have stand in front."""
    flat = [part for term in terms for part in terms_of(term)]
    if len(flat) == 1:
        return flat[0]
    counted: dict[Expression, tuple[Fraction, Expression]] = {}
    for term in flat:
        number, indices, factors = split_term(term)
        body = _product(factors)
        rest = _sum(indices, body) if indices else body
        same = _anonymous(rest)
        before = counted[same][0] if same in counted else Fraction(0)
        counted[same] = (before + number, counted[same][1] if same in counted else rest)
    kept = [_product((Number(n), rest)) for n, rest in counted.values() if n]
    if not kept:
        return Number(Fraction(0))
    if len(kept) == 1:
        return kept[0]
    return _factored(kept)


def _factored(terms: list[Expression]) -> Expression:
    """Draw deltas that stand in every term in front of the bracket."""
    split = [split_term(term) for term in terms]
    common = [
        delta
        for delta in split[0][2]
        if isinstance(delta, Delta)
        and all(
            delta in factors and not {delta.first, delta.second} & set(indices)
            for _, indices, factors in split
        )
    ]
    if not common:
        return Add(tuple(terms))
    inner = []
    for number, indices, factors in split:
        body = _product([Number(number), *(f for f in factors if f not in common)])
        inner.append(_sum(indices, body) if indices else body)
    return _product([*common, _add(inner)])


def _anonymous(node: Expression, depth: int = 0) -> Expression:
    """Return the expression with bound indices that are numbered, for comparisons alone."""
    match node:
        case Sum(indices, body):
            order = [s for s in free_indices(body) if s in indices]
            names = {s: f"#{depth + n}" for n, s in enumerate(order)}
            inner = _anonymous(rename(body, names), depth + len(names))
            return Sum(tuple(names.values()), inner)
        case Softmax(argument, index, _):
            return Softmax(_anonymous(argument, depth), index, "#")
    return rebuild(node, lambda child: _anonymous(child, depth))


# Which sums are written and which implied, and how bound indices are called.


def terms_of(node: Expression) -> tuple[Expression, ...]:
    """Return the terms of a sum of terms, or the one term that the expression is."""
    return node.terms if isinstance(node, Add) else (node,)


def split_term(term: Expression) -> tuple[Fraction, tuple[str, ...], tuple[Expression, ...]]:
    """Return the number, the summed indices and the other factors that a term consists of."""
    number = Fraction(1)
    indices: tuple[str, ...] = ()
    if isinstance(term, Product) and isinstance(term.factors[-1], Sum):
        first = [factor for factor in term.factors[:-1] if isinstance(factor, Number)]
        if len(first) == len(term.factors) - 1:
            number, term = _times(first), term.factors[-1]
    if isinstance(term, Sum):
        indices, term = term.indices, term.body
    factors = term.factors if isinstance(term, Product) else (term,)
    number *= _times(factor for factor in factors if isinstance(factor, Number))
    return number, indices, tuple(f for f in factors if not isinstance(f, Number))


def _times(numbers: Iterable[Expression]) -> Fraction:
    total = Fraction(1)
    for number in numbers:
        assert isinstance(number, Number)
        total *= number.value
    return total


def spread(left: Expression, right: Expression) -> Expression:
    r"""Multiply by ones along the indices of the left side that the right side has nowhere.

    As an equation has to have each index of its left side on its right, what is the same for all
    ``i`` is written with :math:`\sum_{i'} \delta^{ii'}`, which is one.
    """
    missing = [index for index in free_indices(left) if index not in free_indices(right)]
    if not missing:
        return right
    first, *others = terms_of(right)
    number, summed_over, factors = split_term(first)
    taken = all_indices(left) | all_indices(right)
    primed = {index: fresh(index, taken) for index in missing}
    ones = (Delta(index, other) for index, other in primed.items())
    indices = (*primed.values(), *summed_over)
    term: Expression = Sum(indices, Product((*ones, *factors)), written=True)
    if number != 1:
        term = Product((Number(number), term))
    return Add((term, *others)) if others else term


def lacking(left: Expression, right: Expression) -> tuple[str, ...]:
    """Return the indices of the left side that some term of the right side lacks."""
    terms = [set(free_indices(term)) for term in terms_of(right)]
    return tuple(i for i in free_indices(left) if not all(i in term for term in terms))


def _distinct(node: Expression, taken: frozenset[str]) -> Expression:
    """Rename bound indices that have the name of an index in whose reach they stand."""
    match node:
        case Sum(indices, body):
            within = all_indices(body)
            names: dict[str, str] = {}
            for s in indices:
                # As few primes as make it distinct; what has one keeps one.
                start = f"{s.rstrip(chr(39))}'" if s.endswith("'") else s
                names[s] = fresh(start, taken | (within - {s}) | {*names.values()})
            own = tuple(names.values())
            body = _distinct(rename(body, names), taken | set(own))
            return replace(node, indices=own, body=body)
        case Softmax(argument, _, bound):
            if bound in taken:
                bound = fresh(bound, taken | all_indices(argument))
            argument = _distinct(argument, taken | {bound})
            return replace(node, argument=argument, bound=bound)
    return rebuild(node, lambda child: _distinct(child, taken))


def _marked(node: Expression, outermost: bool = False) -> Expression:
    """Mark a sum over a whole term as implied, any other as written, its number in front."""
    inner = rebuild(node, _marked)
    if not isinstance(inner, Sum):
        return inner
    number, indices, factors = split_term(inner)
    if outermost and len(factors) > 1:
        return replace(inner, written=False)
    body = Product(factors) if len(factors) > 1 else factors[0]
    written = Sum(indices, body, written=True)
    return written if number == 1 else Product((Number(number), written))


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


def gradient(left: Expression, right: Expression, name: str) -> tuple[Derivative, Expression]:
    """Return both sides of the equation for the derivative of a loss by an operand."""
    task = _find_task(left, right, name)
    seed = (Derivative(Tensor("L"), task.left),)
    parts = [
        _collected(*part, task) for part in _push(task.right, seed, free_indices(task.left), task)
    ]
    whole = Derivative(Tensor("L"), task.target)
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
    """Return both sides of the equation for the derivative of the left side by an operand."""
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
