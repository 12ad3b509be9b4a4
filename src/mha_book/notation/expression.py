r"""The typed form of index notation, apart from how it is written: its nodes and what they share.

The nodes are those of :mod:`mha_book.notation.nodes`; here are the walks over them and the rules
of renaming.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from keyword import iskeyword

from mha_book.notation.nodes import (
    Add,
    Affine,
    Delta,
    Derivative,
    Expression,
    Function,
    Index,
    Leaf,
    Number,
    Power,
    Product,
    Quotient,
    Softmax,
    Sum,
    Tensor,
)

__all__ = [
    "Add",
    "Affine",
    "Delta",
    "Derivative",
    "Function",
    "Number",
    "Power",
    "Product",
    "Quotient",
    "Softmax",
    "Sum",
    "Tensor",
    "all_indices",
    "children",
    "free_indices",
    "fresh",
    "key",
    "leaves",
    "rebuild",
    "rename",
]


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the expressions directly below a node."""
    match node:
        case Product(factors):
            return factors
        case Add(terms):
            return terms
        case Quotient(numerator, denominator):
            return numerator, denominator
        case Power(base):
            return (base,)
        case Function(_, argument) | Softmax(argument):
            return (argument,)
        case Sum(_, body):
            return (body,)
    return ()


def rebuild(node: Expression, transform: Callable[[Expression], Expression]) -> Expression:
    """Return the node with ``transform`` applied to each expression directly below it."""
    match node:
        case Product(factors):
            return replace(node, factors=tuple(transform(factor) for factor in factors))
        case Add(terms):
            return replace(node, terms=tuple(transform(term) for term in terms))
        case Quotient(numerator, denominator):
            return replace(node, numerator=transform(numerator), denominator=transform(denominator))
        case Power(base):
            return replace(node, base=transform(base))
        case Function(_, argument) | Softmax(argument):
            return replace(node, argument=transform(argument))
        case Sum(_, body):
            return replace(node, body=transform(body))
    return node


def leaves(node: Expression) -> Iterator[Leaf]:
    """Yield the leaves from left to right."""
    if isinstance(node, Tensor | Derivative | Delta | Number):
        yield node
    for child in children(node):
        yield from leaves(child)


def _own(node: Expression) -> Iterator[str]:
    if isinstance(node, Tensor | Derivative):
        for index in node.indices:
            yield from index.indices if isinstance(index, Affine) else (index,)
    elif isinstance(node, Delta):
        yield from (node.first, node.second)


def free_indices(node: Expression) -> tuple[str, ...]:
    """Return the free indices in the order in which they first stand."""
    found = dict.fromkeys(_own(node))
    for child in children(node):
        found |= dict.fromkeys(free_indices(child))
    bound = node.indices if isinstance(node, Sum) else ()
    return tuple(index for index in found if index not in bound)


def all_indices(node: Expression) -> set[str]:
    """Return every index that stands anywhere in the expression, bound or free."""
    found = set(_own(node)).union(*(all_indices(child) for child in children(node)))
    if isinstance(node, Sum):
        found |= set(node.indices)
    if isinstance(node, Softmax):
        found |= {node.index, node.bound}
    return found


def fresh(index: str, taken: set[str] | frozenset[str]) -> str:
    """Return the index with as many more primes as make it new: ``j``, ``j'``, ``j''``."""
    while index in taken:
        index += "'"
    return index


def rename(node: Expression, names: dict[str, str]) -> Expression:
    """Return the expression with its free indices renamed, all at once.

    Bound indices that would capture a new name get another.
    """
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return node

    def index(old: Index) -> Index:
        if isinstance(old, Affine):
            return replace(old, terms=tuple((k, names.get(i, i)) for k, i in old.terms))
        return names.get(old, old)

    def tensor(old: Tensor) -> Tensor:
        return replace(old, indices=tuple(index(i) for i in old.indices))

    def bound(body: Expression, own: tuple[str, ...]) -> dict[str, str]:
        """How the bound indices have to be called, and which renamings still reach the body."""
        inner = {old: new for old, new in names.items() if old not in own}
        taken = all_indices(body) | set(inner.values())
        for old in own:
            if old in inner.values():
                inner[old] = fresh(old, taken)
                taken.add(inner[old])
        return inner

    match node:
        case Tensor():
            return tensor(node)
        case Derivative(upper, lower):
            return replace(node, upper=tensor(upper), lower=tensor(lower))
        case Delta(first, second):
            return replace(node, first=names.get(first, first), second=names.get(second, second))
        case Sum(own, body):
            inner = bound(body, own)
            return replace(
                node, indices=tuple(inner.get(i, i) for i in own), body=rename(body, inner)
            )
        case Softmax(argument, own, other):
            new = names.get(own, own)
            argument = rename(argument, names)
            if other in names.values():
                other = fresh(other, all_indices(argument) | {new})
            return replace(node, argument=argument, index=new, bound=other)
    return rebuild(node, lambda child: rename(child, names))


def key(name: str) -> str:
    r"""Return the Python name of an array: what a call's keyword is.

    ``W_Q`` stays; ``X'`` becomes ``X_prime``, ``\lambda`` becomes ``lambda_``, ``\widetilde{X}``
    becomes ``X_widetilde``, ``dL/dW_Q`` becomes ``dL_dW_Q``.

    Example:
        >>> key("X'"), key("dL/dW_Q"), key(r"\lambda")
        ('X_prime', 'dL_dW_Q', 'lambda_')
    """
    if name.startswith("d") and "/d" in name:
        upper, _, lower = name[1:].partition("/d")
        return f"d{key(upper)}_d{key(lower)}"
    for accent in ("widetilde", "widehat", "tilde", "hat", "bar", "overline"):
        start = f"\\{accent}{{"
        if name.startswith(start):
            inner, _, rest = name[len(start) :].partition("}")
            name = f"{inner}_{accent}{rest}"
    for command in ("text", "mathrm", "operatorname"):
        name = name.replace(f"\\{command}", "")
    plain = name.replace("'", "_prime").replace("\\", "").replace("{", "").replace("}", "")
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in plain)
    return f"{plain}_" if iskeyword(plain) else plain
