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

import mha_book.notation.expression as ex

__all__: list[str] = []


def simplify(expression: ex.Expression, outside: Iterable[str] = ()) -> ex.Expression:
    """Return an expression of the same value in its shortest form.

    No bound index has the name of one in whose reach it stands, or of one outside.
    """
    reduced = _reduce(expression)
    distinct = _distinct(reduced, frozenset((*ex.free_indices(reduced), *outside)))
    terms = tuple(_marked(term, True) for term in terms_of(distinct))
    return ex.Add(terms) if len(terms) > 1 else terms[0]


def _reduce(node: ex.Expression) -> ex.Expression:
    node = ex.rebuild(node, _reduce)
    match node:
        case ex.Product(factors):
            return _product(factors)
        case ex.Add(terms):
            return _add(terms)
        case ex.Sum(indices, body):
            return _sum(indices, body)
        case ex.Quotient(ex.Number(above), ex.Number(below)) if below:
            return ex.Number(above / below)
        case ex.Quotient(above, ex.Number(below)) if below:
            return _product((ex.Number(1 / below), above))
        case ex.Power(ex.Function("sqrt", base), exponent) if exponent == 2:
            return base
        case ex.Power(base, exponent) if exponent == 1:
            return base
        case ex.Power(_, exponent) if exponent == 0:
            return ex.Number(Fraction(1))
    return node


def _product(factors: Iterable[ex.Expression]) -> ex.Expression:
    """Multiply reduced factors: one number in front, then no products and no sums among them."""
    flat: list[ex.Expression] = []
    summed: list[str] = []
    queue = list(factors)
    taken = set().union(*(set(ex.free_indices(factor)) for factor in queue))
    number = Fraction(1)
    while queue:
        factor = queue.pop(0)
        if isinstance(factor, ex.Product):
            queue[:0] = factor.factors
        elif isinstance(factor, ex.Number):
            number *= factor.value
        elif isinstance(factor, ex.Sum):
            within = ex.all_indices(factor.body)
            names = {s: ex.fresh(s, taken | (within - {s})) for s in factor.indices if s in taken}
            own = [names.get(s, s) for s in factor.indices]
            summed += own
            taken |= set(own)
            queue.insert(0, ex.rename(factor.body, names))
        else:
            flat.append(factor)
    # A delta of an index with itself is one wherever something else has the index too.
    for trace in [f for f in flat if isinstance(f, ex.Delta) and f.first == f.second]:
        rest = list(flat)
        rest.remove(trace)
        if any(trace.first in ex.free_indices(factor) for factor in rest):
            flat = rest
    if number == 0:
        return ex.Number(number)
    if number != 1 or not flat:
        flat.insert(0, ex.Number(number))
    product = flat[0] if len(flat) == 1 else ex.Product(tuple(flat))
    return _sum(tuple(summed), product) if summed else product


def _sum(indices: tuple[str, ...], body: ex.Expression) -> ex.Expression:
    """Sum a reduced body: deltas with a summed index are eliminated."""
    if isinstance(body, ex.Sum):
        indices, body = indices + body.indices, body.body
    if body == ex.Number(Fraction(0)):
        return body
    if isinstance(body, ex.Add) and any(_has_delta(term) for term in body.terms):
        return _add([_sum(indices, term) for term in body.terms])
    factors = list(body.factors) if isinstance(body, ex.Product) else [body]
    for delta in [factor for factor in factors if isinstance(factor, ex.Delta)]:
        summed = [s for s in (delta.second, delta.first) if s in indices]
        if summed and delta.first != delta.second:
            gone = summed[0]
            kept = delta.first if gone == delta.second else delta.second
            factors.remove(delta)
            rest = _product([ex.rename(f, {gone: kept}) for f in factors])
            left = tuple(s for s in indices if s != gone)
            return _sum(left, rest) if left else rest
    missing = [s for s in indices if s not in ex.free_indices(body)]
    if missing:  # the sum of something that lacks the index counts its values
        body = _product([*(ex.Delta(s, s) for s in missing), *factors])
    return ex.Sum(indices, body) if indices else body


def _has_delta(node: ex.Expression) -> bool:
    factors = split_term(node)[2]
    return any(isinstance(factor, ex.Delta) for factor in factors)


def _add(terms: Iterable[ex.Expression]) -> ex.Expression:
    """Add reduced terms: like terms are counted, deltas that all of them have stand in front."""
    flat = [part for term in terms for part in terms_of(term)]
    if len(flat) == 1:
        return flat[0]
    counted: dict[ex.Expression, tuple[Fraction, ex.Expression]] = {}
    for term in flat:
        number, indices, factors = split_term(term)
        body = _product(factors)
        rest = _sum(indices, body) if indices else body
        same = _anonymous(rest)
        before = counted[same][0] if same in counted else Fraction(0)
        counted[same] = (before + number, counted[same][1] if same in counted else rest)
    kept = [_product((ex.Number(n), rest)) for n, rest in counted.values() if n]
    if not kept:
        return ex.Number(Fraction(0))
    if len(kept) == 1:
        return kept[0]
    return _factored(kept)


def _factored(terms: list[ex.Expression]) -> ex.Expression:
    """Draw deltas that stand in every term in front of the bracket."""
    split = [split_term(term) for term in terms]
    common = [
        delta
        for delta in split[0][2]
        if isinstance(delta, ex.Delta)
        and all(
            delta in factors and not {delta.first, delta.second} & set(indices)
            for _, indices, factors in split
        )
    ]
    if not common:
        return ex.Add(tuple(terms))
    inner = []
    for number, indices, factors in split:
        body = _product([ex.Number(number), *(f for f in factors if f not in common)])
        inner.append(_sum(indices, body) if indices else body)
    return _product([*common, _add(inner)])


def _anonymous(node: ex.Expression, depth: int = 0) -> ex.Expression:
    """Return the expression with bound indices that are numbered, for comparisons alone."""
    match node:
        case ex.Sum(indices, body):
            order = [s for s in ex.free_indices(body) if s in indices]
            names = {s: f"#{depth + n}" for n, s in enumerate(order)}
            inner = _anonymous(ex.rename(body, names), depth + len(names))
            return ex.Sum(tuple(names.values()), inner)
        case ex.Softmax(argument, index, _):
            return ex.Softmax(_anonymous(argument, depth), index, "#")
    return ex.rebuild(node, lambda child: _anonymous(child, depth))


# Which sums are written and which implied, and how bound indices are called.


def terms_of(node: ex.Expression) -> tuple[ex.Expression, ...]:
    """Return the terms of a sum of terms, or the one term that the expression is."""
    return node.terms if isinstance(node, ex.Add) else (node,)


def split_term(term: ex.Expression) -> tuple[Fraction, tuple[str, ...], tuple[ex.Expression, ...]]:
    """Return the number, the summed indices and the other factors that a term consists of."""
    number = Fraction(1)
    indices: tuple[str, ...] = ()
    if isinstance(term, ex.Product) and isinstance(term.factors[-1], ex.Sum):
        first = [factor for factor in term.factors[:-1] if isinstance(factor, ex.Number)]
        if len(first) == len(term.factors) - 1:
            number, term = _times(first), term.factors[-1]
    if isinstance(term, ex.Sum):
        indices, term = term.indices, term.body
    factors = term.factors if isinstance(term, ex.Product) else (term,)
    number *= _times(factor for factor in factors if isinstance(factor, ex.Number))
    return number, indices, tuple(f for f in factors if not isinstance(f, ex.Number))


def _times(numbers: Iterable[ex.Expression]) -> Fraction:
    total = Fraction(1)
    for number in numbers:
        assert isinstance(number, ex.Number)
        total *= number.value
    return total


def spread(left: ex.Expression, right: ex.Expression) -> ex.Expression:
    r"""Multiply by ones along the indices of the left side that the right side has nowhere.

    As an equation has to have each index of its left side on its right, what is the same for all
    ``i`` is written with :math:`\sum_{i'} \delta^{ii'}`, which is one.
    """
    missing = [index for index in ex.free_indices(left) if index not in ex.free_indices(right)]
    if not missing:
        return right
    first, *others = terms_of(right)
    number, summed_over, factors = split_term(first)
    taken = ex.all_indices(left) | ex.all_indices(right)
    primed = {index: ex.fresh(index, taken) for index in missing}
    ones = (ex.Delta(index, other) for index, other in primed.items())
    indices = (*primed.values(), *summed_over)
    term: ex.Expression = ex.Sum(indices, ex.Product((*ones, *factors)), written=True)
    if number != 1:
        term = ex.Product((ex.Number(number), term))
    return ex.Add((term, *others)) if others else term


def lacking(left: ex.Expression, right: ex.Expression) -> tuple[str, ...]:
    """Return the indices of the left side that some term of the right side lacks."""
    terms = [set(ex.free_indices(term)) for term in terms_of(right)]
    return tuple(i for i in ex.free_indices(left) if not all(i in term for term in terms))


def _distinct(node: ex.Expression, taken: frozenset[str]) -> ex.Expression:
    """Rename bound indices that have the name of an index in whose reach they stand."""
    match node:
        case ex.Sum(indices, body):
            within = ex.all_indices(body)
            names: dict[str, str] = {}
            for s in indices:
                # As few primes as make it distinct; what has one keeps one.
                start = f"{s.rstrip(chr(39))}'" if s.endswith("'") else s
                names[s] = ex.fresh(start, taken | (within - {s}) | {*names.values()})
            own = tuple(names.values())
            body = _distinct(ex.rename(body, names), taken | set(own))
            return replace(node, indices=own, body=body)
        case ex.Softmax(argument, _, bound):
            if bound in taken:
                bound = ex.fresh(bound, taken | ex.all_indices(argument))
            argument = _distinct(argument, taken | {bound})
            return replace(node, argument=argument, bound=bound)
    return ex.rebuild(node, lambda child: _distinct(child, taken))


def _marked(node: ex.Expression, outermost: bool = False) -> ex.Expression:
    """Mark a sum over a whole term as implied, any other as written, its number in front."""
    inner = ex.rebuild(node, _marked)
    if not isinstance(inner, ex.Sum):
        return inner
    number, indices, factors = split_term(inner)
    if outermost and len(factors) > 1:
        return replace(inner, written=False)
    body = ex.Product(factors) if len(factors) > 1 else factors[0]
    written = ex.Sum(indices, body, written=True)
    return written if number == 1 else ex.Product((ex.Number(number), written))


_ONE, _MINUS, _TWO = (ex.Number(Fraction(value)) for value in (1, -1, 2))


# What both directions share: the task, and the slopes of functions.


@dataclass(frozen=True)
class _Task:
    """What is differentiated by what."""

    target: ex.Tensor  # the tensor, with the indices that it has in the derivative
    left: ex.Tensor  # the tensor on the left
    right: ex.Expression  # what it is equal to, so that it may be written as left

    def concerns(self, node: ex.Expression) -> bool:
        """Whether the tensor stands in the expression."""
        own = ex.key(self.target.name)
        return any(
            isinstance(leaf, ex.Tensor) and ex.key(leaf.name) == own for leaf in ex.leaves(node)
        )

    def value(self, node: ex.Expression) -> ex.Expression:
        """The left tensor for the right side, and any other expression itself."""
        axes = sorted(map(str, self.left.indices)) == sorted(ex.free_indices(node))
        return self.left if node == self.right and ex.is_plain(self.left) and axes else node


def _find_task(left: ex.Expression, right: ex.Expression, name: str) -> _Task:
    """Find the tensor that is asked for, and name its axes."""
    if not isinstance(left, ex.Tensor):
        what = "a derivative" if isinstance(left, ex.Derivative) else "an expression"
        raise ValueError(
            f"{name}: expected an equation with a tensor on its left, got {what}: "
            "only what a tensor is equal to can be differentiated"
        )
    found = [leaf for leaf in ex.leaves(right) if isinstance(leaf, ex.Tensor | ex.Derivative)]
    places = [leaf for leaf in found if ex.key(leaf.name) == ex.key(name)]
    if not places:
        known = ", ".join(dict.fromkeys(leaf.name for leaf in found)) or "none"
        raise ValueError(f"{name}: expected a tensor of the right side ({known})")
    for place in places:
        if isinstance(place, ex.Derivative):
            raise ValueError(f"{name}: expected a tensor, got a derivative: it has no second one")
        if not ex.is_plain(place):
            raise ValueError(
                f"{name}: a computed position has no index of its own, so that a derivative by "
                f"the entry at this position cannot be named; write {name} with an index for "
                "each axis, and the split of an axis as an equation before this one"
            )
    first = next((p for p in places if len(set(p.indices)) == len(p.indices)), places[0])
    assert isinstance(first, ex.Tensor)
    taken = ex.all_indices(right) | ex.all_indices(left)
    axes: list[str] = []
    for index in first.indices:
        assert isinstance(index, str)
        axes.append(ex.fresh(index, taken | set(axes)) if index in axes else index)
    return _Task(ex.Tensor(first.name, tuple(axes)), left, right)


def _centered(
    weight: ex.Expression, change: ex.Expression, index: str, bound: str
) -> ex.Expression:
    r"""Return :math:`C^j - \sum_{j'} A^{j'} C^{j'}`."""
    other = ex.fresh(bound, ex.all_indices(weight) - {bound} | ex.all_indices(change))
    there = {index: other}
    mean = ex.Sum((other,), ex.Product((ex.rename(weight, there), ex.rename(change, there))))
    return ex.Add((change, ex.Product((_MINUS, mean))))


def _by_denominator(node: ex.Quotient, task: _Task) -> tuple[ex.Expression, ...]:
    """Return the factors of the derivative of a quotient by its denominator."""
    value = task.value(node)
    if value is not node:
        return _MINUS, ex.Quotient(value, node.denominator)
    return _MINUS, ex.Quotient(node.numerator, ex.Power(node.denominator, Fraction(2)))


def _slope(node: ex.Expression, task: _Task) -> ex.Expression:
    """Return the derivative of a power or of a function by its argument."""
    value = task.value(node)
    match node:
        case ex.Power(base, exponent):
            return ex.Product((ex.Number(exponent), ex.Power(base, exponent - 1)))
        case ex.Function("exp"):
            return value
        case ex.Function("log", argument):
            return ex.Quotient(_ONE, argument)
        case ex.Function("sqrt"):
            return ex.Quotient(_ONE, ex.Product((_TWO, value)))
        case ex.Function("tanh"):
            return ex.Add((_ONE, ex.Product((_MINUS, ex.Power(value, Fraction(2))))))
        case ex.Function("sin", argument):
            return ex.Function("cos", argument)
        case ex.Function("cos", argument):
            return ex.Product((_MINUS, ex.Function("sin", argument)))
    raise ValueError(f"{node}: expected a power or a function whose derivative is known")


def _summed(indices: tuple[str, ...], body: ex.Expression) -> ex.Expression:
    """Return the sum over the indices, which may be none."""
    return ex.Sum(indices, body) if indices else body


# Backwards: the gradient of a loss.


def gradient(
    left: ex.Expression, right: ex.Expression, name: str
) -> tuple[ex.Derivative, ex.Expression]:
    """Return both sides of the equation for the derivative of a loss by an operand."""
    task = _find_task(left, right, name)
    seed = (ex.Derivative(ex.Tensor("L"), task.left),)
    parts = [
        _collected(*part, task)
        for part in _push(task.right, seed, ex.free_indices(task.left), task)
    ]
    whole = ex.Derivative(ex.Tensor("L"), task.target)
    return whole, spread(whole, simplify(ex.Add(tuple(parts)), ex.free_indices(whole)))


_Part = tuple[ex.Tensor, tuple[ex.Expression, ...], tuple[str, ...]]


def _push(
    node: ex.Expression, seed: tuple[ex.Expression, ...], scope: tuple[str, ...], task: _Task
) -> Iterator[_Part]:
    """Push the derivative by a node down to the tensor.

    The change of the loss is the sum over ``scope`` of the product of ``seed`` and the change of
    the node. The last factor of the seed is the derivative that came from above.
    """
    if not task.concerns(node):
        return
    match node:
        case ex.Tensor():
            yield node, seed, scope
        case ex.Add(terms):
            for term in terms:
                yield from _push(term, seed, scope, task)
        case ex.Product(factors):
            for n, factor in enumerate(factors):
                yield from _push(factor, _after(seed, *factors[:n], *factors[n + 1 :]), scope, task)
        case ex.Sum(own, body):
            taken = set(scope).union(*map(ex.all_indices, seed))
            names: dict[str, str] = {}
            for s in own:
                names[s] = ex.fresh(s, taken | (ex.all_indices(body) - {s}) | set(names.values()))
            opened = scope + tuple(names.values())
            yield from _push(ex.rename(body, names), seed, opened, task)
        case ex.Softmax(argument, index, bound):
            rest = tuple(s for s in scope if s not in ex.free_indices(node))
            scope = tuple(s for s in scope if s not in rest)
            came = _summed(rest, ex.Product(seed))
            if index in ex.free_indices(came):
                weight = task.value(node)
                change = _centered(weight, came, index, bound)
                yield from _push(argument, (weight, change), scope, task)
        case ex.Quotient(above_line, below_line):
            inverse = ex.Quotient(_ONE, below_line)
            yield from _push(above_line, _after(seed, inverse), scope, task)
            yield from _push(below_line, _after(seed, *_by_denominator(node, task)), scope, task)
        case ex.Power() | ex.Function():
            (argument,) = ex.children(node)
            yield from _push(argument, _after(seed, _slope(node, task)), scope, task)


def _after(seed: tuple[ex.Expression, ...], *factors: ex.Expression) -> tuple[ex.Expression, ...]:
    """Put further factors in front of the derivative from above, those without axes first."""
    *before, above = seed
    both = (*before, *factors)
    scalars = [factor for factor in both if not ex.all_indices(factor)]
    return (*scalars, *(factor for factor in both if ex.all_indices(factor)), above)


def _collected(
    leaf: ex.Tensor, seed: tuple[ex.Expression, ...], scope: tuple[str, ...], task: _Task
) -> ex.Expression:
    """Sum the seed over all indices but the tensor's, and give these the names of its axes."""
    own = [index for index in leaf.indices if isinstance(index, str)]
    axes = ex.free_indices(task.target)
    names: dict[str, str] = {}
    deltas = []
    for index, axis in zip(own, axes, strict=True):
        if index in names:
            deltas.append(ex.Delta(names[index], axis))
        names.setdefault(index, axis)
    total = _summed(tuple(s for s in scope if s not in own), ex.Product(seed))
    return ex.Product((*deltas, ex.rename(total, names)))


# Forwards: the derivative of each element by each.


def jacobian(
    left: ex.Expression, right: ex.Expression, name: str
) -> tuple[ex.Derivative, ex.Expression]:
    """Return both sides of the equation for the derivative of the left side by an operand."""
    task = _find_task(left, right, name)
    lower = set(ex.free_indices(task.target))
    primed = {i: ex.fresh(f"{i}'", lower) for i in ex.free_indices(task.left)}
    upper = ex.rename(task.left, primed)
    assert isinstance(upper, ex.Tensor)
    task = _Task(task.target, upper, ex.rename(task.right, primed))
    tangent = simplify(_tangent(task.right, task), lower)
    terms = tuple(_ordered(term, ex.free_indices(upper), lower) for term in terms_of(tangent))
    whole = ex.Derivative(upper, task.target)
    return whole, spread(whole, simplify(ex.Add(terms), ex.free_indices(whole)))


def _tangent(node: ex.Expression, task: _Task) -> ex.Expression:
    """Return the change of a node for a change of one entry of the tensor."""
    if not task.concerns(node):
        return ex.Number(Fraction(0))
    match node:
        case ex.Tensor():
            pairs = zip(node.indices, ex.free_indices(task.target), strict=True)
            return ex.Product((_ONE, *(ex.Delta(str(own), axis) for own, axis in pairs)))
        case ex.Add(terms):
            return ex.Add(tuple(_tangent(term, task) for term in terms))
        case ex.Product(factors):
            changed = [
                ex.Product((*factors[:n], _tangent(factor, task), *factors[n + 1 :]))
                for n, factor in enumerate(factors)
                if task.concerns(factor)
            ]
            return ex.Add(tuple(changed))
        case ex.Sum(own, body):
            taken = set(ex.free_indices(task.target)) | ex.all_indices(body)
            names: dict[str, str] = {}
            for s in (s for s in own if s in ex.free_indices(task.target)):
                names[s] = ex.fresh(s, taken | set(names.values()))
            indices = tuple(names.get(s, s) for s in own)
            return ex.Sum(indices, _tangent(ex.rename(body, names), task))
        case ex.Softmax(argument, index, bound):
            weight = task.value(node)
            change = _tangent(argument, task)
            return ex.Product((weight, _centered(weight, change, index, bound)))
        case ex.Quotient(above_line, below_line):
            first = ex.Product((ex.Quotient(_ONE, below_line), _tangent(above_line, task)))
            second = ex.Product((*_by_denominator(node, task), _tangent(below_line, task)))
            return ex.Add((first, second))
    (argument,) = ex.children(node)
    return ex.Product((_slope(node, task), _tangent(argument, task)))


def _ordered(term: ex.Expression, upper: tuple[str, ...], lower: set[str]) -> ex.Expression:
    """Name by the lower index what a delta makes equal, and order factors by the upper ones."""
    number, indices, factors = split_term(term)
    deltas = [f for f in factors if isinstance(f, ex.Delta) and {f.first, f.second} & lower]
    names = {d.first: d.second for d in deltas if d.first in upper and d.second in lower}
    plain = [f if f in deltas else ex.rename(f, names) for f in factors]

    def place(factor: ex.Expression) -> int:
        return min((upper.index(i) for i in ex.free_indices(factor) if i in upper), default=-1)

    product = ex.Product((ex.Number(number), *sorted(plain, key=place)))
    return _summed(indices, product)
