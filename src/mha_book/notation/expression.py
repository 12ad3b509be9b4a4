r"""The typed form of index notation: nodes, the walks over them, errors that show their place.

The parser makes the nodes from LaTeX; evaluation, loops, gradients and diagrams work on them alone.
Every sum is a node of its own (:class:`Sum`), whether the page writes it or implies it, so that
what lies below a node has a meaning that no other part of the equation can change.

An index is a string, a letter with its primes: ``"i"``, ``"j'"``. The value of an expression is
an array with one axis for each of its free indices.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from keyword import iskeyword
from typing import Any

__all__ = ["key"]

Span = tuple[int, int] | None
"""Where in the source an expression stands, from the first character to behind the last.

Derived expressions stand nowhere. It takes no part in comparisons.
"""


@dataclass(frozen=True)
class Affine:
    r"""A computed position, such as :math:`hH + a` in :math:`X^{i(hH+a)}`.

    Attributes:
        terms: pairs of a factor and an index: ``(("H", "h"), (1, "a"))``. A factor is an integer
            or the name of a scalar.
        offset: an integer, or the name of a scalar, added to the sum of the terms.
    """

    terms: tuple[tuple[int | str, str], ...]
    offset: int | str = 0

    @property
    def indices(self) -> tuple[str, ...]:
        """The indices from which the position is computed."""
        return tuple(index for _, index in self.terms)


Index = str | Affine
"""What stands at an axis of a tensor: a letter with its primes, or a computed position."""


@dataclass(frozen=True)
class Number:
    """A number of the page: exact where it is written as digits or as a fraction of integers."""

    value: Fraction
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Tensor:
    r"""A named array with its indices: :math:`W_Q^{hba}`; without indices, a named scalar."""

    name: str  # the name as LaTeX writes it, without spaces: W_Q, X', \lambda, d_k
    indices: tuple[Index, ...] = ()  # one for each axis, in the order of the axes
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Derivative:
    r"""A partial derivative: an array with the axes of both tensors, those of the upper first.

    :math:`\partial L / \partial Q^{hia}` has axes h, i, a;
    :math:`\partial Q^{h'i'a'} / \partial W_Q^{hba}` has axes h', i', a', h, b, a.
    """

    upper: Tensor
    lower: Tensor
    span: Span = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name under which the array is given: ``dL/dQ``."""
        return f"d{self.upper.name}/d{self.lower.name}"

    @property
    def indices(self) -> tuple[Index, ...]:
        """The indices of both tensors."""
        return self.upper.indices + self.lower.indices


@dataclass(frozen=True)
class Delta:
    """Kronecker's delta: one where both indices are equal, zero elsewhere."""

    first: str
    second: str
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Product:
    """The product of its factors, entry by entry: an index that they share is one index."""

    factors: tuple["Expression", ...]
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Add:
    """The sum of its terms. A difference has a term with the factor -1."""

    terms: tuple["Expression", ...]
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Quotient:
    """Numerator divided by denominator, entry by entry."""

    numerator: "Expression"
    denominator: "Expression"
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Power:
    """A constant power, entry by entry."""

    base: "Expression"
    exponent: Fraction
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Function:
    """A function applied to each entry: ``exp``, ``log``, ``sqrt``, ``tanh``, ``sin``, ``cos``."""

    name: str
    argument: "Expression"
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Sum:
    r"""The sum of the body over indices that are free in it."""

    indices: tuple[str, ...]  # the indices summed over. Outside this node they mean nothing
    body: "Expression"  # what is summed
    written: bool = False  # whether the page writes the :math:\sum; an implied sum is drawn without
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Softmax:
    r"""A quotient :math:`\exp E^j / \sum_{j'} \exp E^{j'}`, known for what it is.

    It is evaluated with the maximum subtracted and has a derivative without quotients. As LaTeX
    and as loops it is the quotient that it stands for.
    """

    argument: "Expression"  # E, in which index is free
    index: str  # j, which is free in the softmax
    bound: str  # j', the name of the index of the denominator's sum
    span: Span = field(default=None, compare=False)


Leaf = Number | Tensor | Derivative | Delta
"""An expression without others below it."""

Named = Tensor | Derivative
"""What is given as an array, under its name."""

Expression = Leaf | Product | Add | Quotient | Power | Function | Sum | Softmax
"""Any node."""


_BELOW: dict[type, tuple[str, ...]] = {
    Product: ("factors",),
    Add: ("terms",),
    Quotient: ("numerator", "denominator"),
    Power: ("base",),
    Function: ("argument",),
    Softmax: ("argument",),
    Sum: ("body",),
}


def children(node: Expression) -> tuple[Expression, ...]:
    """Return the expressions directly below a node."""
    fields = (getattr(node, name) for name in _BELOW.get(type(node), ()))
    return tuple(x for field in fields for x in (field if isinstance(field, tuple) else (field,)))


def rebuild(node: Expression, transform: Callable[[Expression], Expression]) -> Expression:
    """Return the node with ``transform`` applied to each expression directly below it."""
    changed: dict[str, Any] = {}
    for name in _BELOW.get(type(node), ()):
        field = getattr(node, name)
        changed[name] = (
            tuple(map(transform, field)) if isinstance(field, tuple) else transform(field)
        )
    return replace(node, **changed) if changed else node


def walk(node: Expression) -> Iterator[Expression]:
    """Yield the expression and everything below it, from left to right."""
    yield node
    for child in children(node):
        yield from walk(child)


def leaves(*nodes: Expression) -> Iterator[Leaf]:
    """Yield the leaves of some expressions from left to right."""
    return (n for node in nodes for n in walk(node) if isinstance(n, Leaf))


def written_indices(node: Expression) -> tuple[str, ...]:
    """Return the indices that a node itself writes, each as often as it stands there."""
    if isinstance(node, Tensor | Derivative):
        groups = (i.indices if isinstance(i, Affine) else (i,) for i in node.indices)
        return tuple(index for group in groups for index in group)
    if isinstance(node, Delta):
        return node.first, node.second
    return node.indices if isinstance(node, Sum) else ()


def is_plain(leaf: Named) -> bool:
    """Return whether each axis of a tensor has an index, and none a computed position."""
    return all(isinstance(index, str) for index in leaf.indices)


def free_indices(node: Expression) -> tuple[str, ...]:
    """Return the free indices in the order in which they first stand."""
    found = dict.fromkeys(written_indices(node))
    for child in children(node):
        found |= dict.fromkeys(free_indices(child))
    bound = node.indices if isinstance(node, Sum) else ()
    return tuple(index for index in found if index not in bound)


def all_indices(*nodes: Expression) -> set[str]:
    """Return every index that stands anywhere in some expressions, bound or free."""
    found: set[str] = set()
    for node in (n for each in nodes for n in walk(each)):
        found.update(written_indices(node))
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
    match node:
        case Tensor():
            return _rename_axes(node, names)
        case Derivative(upper, lower):
            upper, lower = _rename_axes(upper, names), _rename_axes(lower, names)
            return replace(node, upper=upper, lower=lower)
        case Delta(first, second):
            return replace(node, first=names.get(first, first), second=names.get(second, second))
        case Sum(own, body):
            # The renamings that still reach the body, and new names for what would capture one.
            inner = {old: new for old, new in names.items() if old not in own}
            taken = all_indices(body) | set(inner.values())
            for index in own:
                if index in inner.values():
                    inner[index] = fresh(index, taken)
                    taken.add(inner[index])
            own = tuple(inner.get(index, index) for index in own)
            return replace(node, indices=own, body=rename(body, inner))
        case Softmax(argument, index, other):
            new = names.get(index, index)
            argument = rename(argument, names)
            if other in names.values():
                other = fresh(other, all_indices(argument) | {new})
            return replace(node, argument=argument, index=new, bound=other)
    return rebuild(node, lambda child: rename(child, names))


def _rename_axes(leaf: Tensor, names: dict[str, str]) -> Tensor:
    axes: list[Index] = []
    for axis in leaf.indices:
        if isinstance(axis, Affine):
            terms = tuple((factor, names.get(index, index)) for factor, index in axis.terms)
            axes.append(replace(axis, terms=terms))
        else:
            axes.append(names.get(axis, axis))
    return replace(leaf, indices=tuple(axes))


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


_WIDTH = 96  # characters of a line that an error shows


def notation_error(message: str, source: str | None, span: Span = None) -> ValueError:
    """Return a ``ValueError`` that shows the line of the source and marks the span with carets."""
    if source is None:  # several equations, of which none is at fault alone
        return ValueError(message)
    start, end = span or (0, 1)
    start = min(max(start, 0), len(source))
    first = source.rfind("\n", 0, start) + 1
    last = source.find("\n", start)
    line = source[first : last if last >= 0 else len(source)]
    column = start - first
    width = max(1, min(end - start, len(line) - column))
    left = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
    shown = line[left : left + _WIDTH]
    width = min(width, max(1, _WIDTH - (column - left)))
    before, after = "…" * (left > 0), "…" * (left + _WIDTH < len(line))
    shown = "".join(c if c.isprintable() else " " for c in shown)
    carets = " " * (len(before) + column - left) + "^" * width
    return ValueError(f"{message}\n  {before}{shown}{after}\n  {carets}")
