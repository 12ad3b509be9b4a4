r"""Which sums are written and which implied, and how bound indices are called.

An index that stands only on the right of an equation is summed without a sign. Such a sum takes in
the whole of a product; any other sum has to be written.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from mha_book.notation.expression import (
    Add,
    Delta,
    Derivative,
    Expression,
    Number,
    Product,
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

__all__ = ["lacking", "mark_sums", "split_term", "spread", "terms_of"]


def mark_sums(expression: Expression, outside: Iterable[str] = ()) -> Expression:
    """Mark each sum as implied or written, and give bound indices names of their own.

    Args:
        expression: the right side of an equation, without a product or sum directly in a product.
        outside: indices that mean something outside, such as those of the left side.

    Returns:
        The same expression. No bound index has the name of an index in whose reach it stands; a
        written sum has its number in front.

    Example:
        >>> x, y = Tensor("x", ("j",)), Tensor("y", ("i", "j"))
        >>> mark_sums(Sum(("j",), Product((x, y)), written=True)).written
        False
        >>> mark_sums(Sum(("j",), y)).written
        True
    """
    distinct = _distinct(expression, frozenset((*free_indices(expression), *outside)))
    signs = frozenset[str]()
    while True:  # a letter is summed by a sign everywhere, or nowhere
        terms = tuple(_marked(term, True, signs) for term in terms_of(distinct))
        found = frozenset().union(*map(_with_sign, terms))
        if found <= signs:
            return Add(terms) if len(terms) > 1 else terms[0]
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
    return Add((term, *others)) if others else term


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
