r"""The nodes of an expression in index notation.

The parser makes them from LaTeX; evaluation, loops, gradients and diagrams work on them alone.
Every sum is a node of its own (:class:`Sum`), whether the page writes it or implies it, so that
what lies below a node has a meaning that no other part of the equation can change.

An index is a string, a letter with its primes: ``"i"``, ``"j'"``. The value of an expression is
an array with one axis for each of its free indices.
"""

from dataclasses import dataclass, field
from fractions import Fraction

__all__ = [
    "Add",
    "Affine",
    "Delta",
    "Derivative",
    "Expression",
    "Function",
    "Index",
    "Leaf",
    "Number",
    "Power",
    "Product",
    "Quotient",
    "Softmax",
    "Span",
    "Sum",
    "Tensor",
]

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
    r"""A named array with its indices: :math:`W_Q^{hba}`; without indices, a named scalar.

    Attributes:
        name: the name as LaTeX writes it, without spaces: ``W_Q``, ``X'``, ``\lambda``, ``d_k``.
        indices: one for each axis, in the order of the axes.
    """

    name: str
    indices: tuple[Index, ...] = ()
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
    r"""The sum of the body over indices that are free in it.

    Attributes:
        indices: the indices summed over. Outside this node they mean nothing.
        body: what is summed.
        written: whether the page writes the :math:`\sum`; an implied sum is drawn without.
    """

    indices: tuple[str, ...]
    body: "Expression"
    written: bool = False
    span: Span = field(default=None, compare=False)


@dataclass(frozen=True)
class Softmax:
    r"""A quotient :math:`\exp E^j / \sum_{j'} \exp E^{j'}`, known for what it is.

    It is evaluated with the maximum subtracted and has a derivative without quotients. As LaTeX
    and as loops it is the quotient that it stands for.

    Attributes:
        argument: E, in which ``index`` is free.
        index: j, which is free in the softmax.
        bound: j', the name of the index of the denominator's sum.
    """

    argument: "Expression"
    index: str
    bound: str
    span: Span = field(default=None, compare=False)


Leaf = Number | Tensor | Derivative | Delta
"""An expression without others below it."""

Expression = Leaf | Product | Add | Quotient | Power | Function | Sum | Softmax
"""Any node."""
