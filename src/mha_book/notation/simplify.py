r"""The shortest form of a derived expression, as a person would write it down.

Rules of differentiation leave numbers to multiply, sums inside products and Kronecker's deltas.
:func:`simplify` multiplies the numbers, adds like terms, draws sums out of products, eliminates a
delta with a summed index, :math:`\sum_s \delta^{st} x^s = x^t`, and says of every sum whether it
has to be written or is implied by the rules of the notation.
"""

from collections.abc import Iterable
from fractions import Fraction

from mha_book.notation.expression import (
    Add,
    Delta,
    Expression,
    Function,
    Number,
    Power,
    Product,
    Quotient,
    Softmax,
    Sum,
    all_indices,
    free_indices,
    fresh,
    rebuild,
    rename,
)
from mha_book.notation.sums import mark_sums, split_term, terms_of

__all__ = ["simplify"]


def simplify(expression: Expression, outside: Iterable[str] = ()) -> Expression:
    r"""Return an expression of the same value in its shortest form.

    Args:
        expression: any expression.
        outside: indices that mean something outside, so that no bound index takes their name.

    Returns:
        The expression with each of its sums either implied by the rules of the notation or marked
        as written, and no bound index that has the name of another in whose reach it stands.

    Example:
        >>> from mha_book.notation.expression import Tensor
        >>> x = Tensor("X", ("i", "b"))
        >>> simplify(Sum(("b",), Product((Number(Fraction(1)), x, Delta("b", "d")))))
        Tensor(name='X', indices=('i', 'd'), span=None)
    """
    return mark_sums(_reduce(expression), outside)


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
