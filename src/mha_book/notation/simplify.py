r"""The shortest form of a derived expression, as a person would write it down.

Rules of differentiation leave numbers to multiply, sums inside products and Kronecker's deltas.
:func:`simplify` multiplies the numbers, adds like terms, draws sums out of products, eliminates a
delta with a summed index, :math:`\sum_s \delta^{st} x^s = x^t`, and says of every sum whether it
has to be written or is implied: an index that stands only on the right of an equation is summed
without a sign over the whole of a product; any other sum has to be written.
"""

from collections.abc import Iterable
from dataclasses import replace
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
    rebuild,
    rename,
)

__all__ = ["lacking", "simplify", "split_term", "spread", "terms_of"]


def simplify(expression: Expression, outside: Iterable[str] = ()) -> Expression:
    r"""Return an expression of the same value in its shortest form.

    Args:
        expression: any expression.
        outside: indices that mean something outside, so that no bound index takes their name.

    Returns:
        The expression with each of its sums either implied by the rules of the notation or marked
        as written, and no bound index that has the name of another in whose reach it stands.

    Example:
        >>> x = Tensor("X", ("i", "b"))
        >>> simplify(Sum(("b",), Product((Number(Fraction(1)), x, Delta("b", "d")))))
        Tensor(name='X', indices=('i', 'd'), span=None)
    """
    return _mark_sums(_reduce(expression), outside)


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


def _mark_sums(expression: Expression, outside: Iterable[str] = ()) -> Expression:
    """Mark each sum as implied or written, and give bound indices names of their own.

    Args:
        expression: the right side of an equation, without a product or sum directly in a product.
        outside: indices that mean something outside, such as those of the left side.

    Returns:
        The same expression. No bound index has the name of an index in whose reach it stands; a
        written sum has its number in front.

    Example:
        >>> x, y = Tensor("x", ("j",)), Tensor("y", ("i", "j"))
        >>> _mark_sums(Sum(("j",), Product((x, y)), written=True)).written
        False
        >>> _mark_sums(Sum(("j",), y)).written
        True
    """
    distinct = _distinct(expression, frozenset((*free_indices(expression), *outside)))
    return _with_signs(terms_of(distinct), frozenset())


def _with_signs(terms: tuple[Expression, ...], signs: frozenset[str]) -> Expression:
    """Add terms in which a letter is summed by a sign everywhere, or nowhere."""
    while True:
        marked = tuple(_marked(term, True, signs) for term in terms)
        found = frozenset().union(*map(_with_sign, marked))
        if found <= signs:
            return Add(marked) if len(marked) > 1 else marked[0]
        signs |= found


def terms_of(node: Expression) -> tuple[Expression, ...]:
    """Return the terms of a sum of terms, or the one term that the expression is."""
    return node.terms if isinstance(node, Add) else (node,)


def split_term(term: Expression) -> tuple[Fraction, tuple[str, ...], tuple[Expression, ...]]:
    r"""Return the number, the summed indices and the other factors that a term consists of.

    Args:
        term: a product, a sum over one, or a single factor.

    Returns:
        ``number``, ``indices`` and ``factors`` with
        :math:`\text{term} = \text{number} \sum_{\text{indices}} \prod \text{factors}`.

    Example:
        >>> split_term(Sum(("j",), Product((Number(Fraction(2)), Tensor("x", ("j",))))))
        (Fraction(2, 1), ('j',), (Tensor(name='x', indices=('j',), span=None),))
    """
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

    Args:
        left: of an equation.
        right: in its shortest form.
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
    return _with_signs((term, *others), frozenset(indices))


def lacking(left: Expression, right: Expression) -> tuple[str, ...]:
    """Return the indices of the left side that some term of the right side lacks.

    Args:
        left: of an equation.
        right: likewise.

    Returns:
        The indices, in the order of the left side: along these, terms are broadcast.

    Example:
        >>> lacking(Tensor("y", ("i", "a")), Add((Tensor("x", ("i", "a")), Tensor("b", ("a",)))))
        ('i',)
    """
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


def _with_sign(node: Expression) -> set[str]:
    """Return the letters over which sums are written."""
    own = node.indices if isinstance(node, Sum) and node.written else ()
    bound = (node.bound,) if isinstance(node, Softmax) else ()
    return {*own, *bound}.union(*map(_with_sign, children(node)))


def _marked(node: Expression, outermost: bool, signs: frozenset[str]) -> Expression:
    """Mark each sum as implied or written; in front of a written one stands its number."""
    inner = rebuild(node, lambda child: _marked(child, False, signs))
    if not isinstance(node, Sum) or not isinstance(inner, Sum):
        return inner
    if outermost and _is_implied(node) and not signs & {*node.indices}:
        return replace(inner, written=False)
    number, indices, factors = split_term(inner)
    body = Product(factors) if len(factors) > 1 else factors[0]
    written = Sum(indices, body, written=True)
    return written if number == 1 else Product((Number(number), written))


def _is_implied(node: Sum) -> bool:
    """Whether an index that is only on the right would be summed in this way."""
    _, _, factors = split_term(node)
    if len(factors) == 1:
        return False
    for s in node.indices:
        places = [factor for factor in factors if s in free_indices(factor)]
        if len(places) == 1 and not isinstance(places[0], Tensor | Derivative | Delta):
            return False
        if any(_hides(factor, s) for factor in places):
            return False
    return True


def _hides(node: Expression, index: str) -> bool:
    """Whether the index stands where no implied sum reaches: in a fraction, power or function."""
    match node:
        case Tensor() | Derivative() | Delta() | Number():
            return False
        case Product(parts) | Add(parts):
            return any(_hides(part, index) for part in parts)
        case Sum(_, body):
            return _hides(body, index)
    return index in free_indices(node)
