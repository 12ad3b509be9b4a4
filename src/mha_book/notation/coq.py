r"""From an equation to Coq: the proposition that a proof assistant checks.

Each equation becomes a definition of Coq: a statement about arrays, which are functions of natural
numbers, and about the sizes of their axes. Free indices run over their sizes, sums are written out,
and a chain ``a = b = c`` says both equalities. The page's text alone decides what is to be proved.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise

import mha_book.notation.expression as ex
from mha_book.notation.equation import Equation
from mha_book.notation.evaluate import signed
from mha_book.notation.expression import key, leaves, notation_error, rename, walk

__all__ = ["to_coq"]

_SUM, _TERM, _APPLIED, _ARGUMENT = range(1, 5)  # how tightly a piece of Coq binds
_TAKEN = frozenset(
    ("R", "as", "at", "cos", "else", "end", "exp", "fix", "for", "forall", "fun", "if", "in", "ln",
     "let", "match", "nat", "sin", "sqrt", "sum", "tanh", "then", "with")
)  # fmt: skip
_FUNCTIONS = {"log": "ln"}


def to_coq(equation: Equation, name: str) -> str:
    r"""Return the definition, in Coq, of the proposition that an equation states.

    Args:
        equation: the equation.
        name: how the definition is called.

    Raises:
        ValueError: the equation has a power that is no whole number.

    Example:
        >>> print(to_coq(Equation(r"y^i = W^{ij} x^j"), "product"))
        Definition product (n_i n_j : nat) (y : nat -> R) (W : nat -> nat -> R)
            (x : nat -> R) : Prop :=
          forall i : nat, (i < n_i)%nat ->
          y i = sum n_j (fun j => W i j * x j).
    """
    return _Writer(equation).definition(name)


def _free(name: str) -> str:
    """Return a name of the page as Coq accepts it."""
    plain = key(name)
    return f"{plain}_" if plain in _TAKEN else plain


class _Writer:
    """Writes one definition."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.nodes = [node for side in equation.sides for node in walk(side)]
        self.joined: dict[str, str] = {}
        self.ranges: dict[str, None] = {}
        self.naturals: dict[str, None] = {}
        self.join_axes()
        for node in self.nodes:
            if isinstance(node, ex.Named):
                for axis in node.indices:
                    self.ranges |= dict.fromkeys(map(self.size, self.letters(axis)))

    def letters(self, axis: ex.Index) -> tuple[str, ...]:
        """Return the indices of an axis, and note the sizes that a computed position names."""
        if isinstance(axis, str):
            return (axis,)
        named = [factor for factor, _ in axis.terms] + [axis.offset]
        self.naturals |= dict.fromkeys(_free(x) for x in named if isinstance(x, str))
        return axis.indices

    def join_axes(self) -> None:
        """Give one size to indices that stand at one axis of an array, or in one softmax."""
        axes: dict[tuple[str, int], str] = {}
        for node in self.nodes:
            if isinstance(node, ex.Softmax):
                self.join(node.index, node.bound)
            elif isinstance(node, ex.Delta):
                self.join(node.first, node.second)
            elif isinstance(node, ex.Tensor | ex.Derivative):
                parts = [node] if isinstance(node, ex.Tensor) else [node.upper, node.lower]
                for part in parts:
                    for place, index in enumerate(part.indices):
                        if isinstance(index, str):
                            self.join(axes.setdefault((part.name, place), index), index)

    def root(self, index: str) -> str:
        """Return the index whose size an index has."""
        while index in self.joined:
            index = self.joined[index]
        return index

    def join(self, first: str, second: str) -> None:
        """Let two indices have one size, named after the shorter."""
        short, long = sorted((self.root(first), self.root(second)), key=len)
        if short != long:
            self.joined[long] = short

    def size(self, index: str) -> str:
        """Return the name of the size of an index."""
        return f"n_{key(self.root(index))}"

    def name(self, leaf: ex.Named) -> str:
        """Return the name of an array, which none of the sizes has."""
        name = _free(leaf.name)
        return f"{name}_" if name in self.ranges else name

    def definition(self, name: str) -> str:
        """Write the definition."""
        arrays: dict[str, int] = {}
        for leaf in leaves(*self.equation.sides):
            if isinstance(leaf, ex.Named):
                arrays.setdefault(self.name(leaf), len(leaf.indices))
        sizes = [*self.ranges, *(n for n in self.naturals if n not in self.ranges)]
        given = [f"({' '.join(sizes)} : nat)"] if sizes else []
        of_reals = [(x, n) for x, n in arrays.items() if x not in sizes]
        for axes, group in groupby(of_reals, key=lambda pair: pair[1]):
            given.append(f"({' '.join(x for x, _ in group)} : {'nat -> ' * axes}R)")
        head = _wrapped(["Definition", name, *given, ": Prop :="])
        free = self.equation.free
        ranges = " -> ".join(f"({key(i)} < {self.size(i)})%nat" for i in free)
        head += [f"  forall {' '.join(map(key, free))} : nat, {ranges} ->"] if free else []
        sides = [self.write(side, 0) for side in self.equation.sides]
        return (
            "\n".join([*head, "  " + " /\\\n  ".join(f"{a} = {b}" for a, b in pairwise(sides))])
            + "."
        )

    def position(self, axis: ex.Index) -> str:
        """Write what stands at an axis of an array."""
        if isinstance(axis, str):
            return key(axis)
        terms = [key(i) if k == 1 else f"{key(i)} * {_natural(k)}" for k, i in axis.terms]
        return f"({' + '.join(terms + [_natural(axis.offset)] * (axis.offset != 0))})%nat"

    def write(self, node: ex.Expression, binds: int) -> str:
        """Write an expression, in brackets where it binds less tightly than it has to."""
        text, own = self.expression(node)
        return text if own >= binds else f"({text})"

    def expression(self, node: ex.Expression) -> tuple[str, int]:
        """Write an expression; return it, and how tightly it binds."""
        match node:
            case ex.Number(value):
                plain = value.denominator == 1
                return str(value).replace("/", " / "), _ARGUMENT if plain and value >= 0 else _SUM
            case ex.Tensor() | ex.Derivative():
                axes = [self.position(axis) for axis in node.indices]
                return " ".join([self.name(node), *axes]), _APPLIED if axes else _ARGUMENT
            case ex.Delta(first, second):
                return f"delta {key(first)} {key(second)}", _APPLIED
            case ex.Product(factors):
                minus, rest = signed(node)
                if minus:
                    return f"- {self.write(rest, _TERM)}", _SUM
                return " * ".join(self.write(factor, _TERM) for factor in factors), _TERM
            case ex.Add(terms):
                text = ""
                for term in terms:
                    minus, rest = signed(term)
                    sign = "- " * minus if not text else (" - " if minus else " + ")
                    text += sign + self.write(rest, _TERM)
                return text, _SUM
            case ex.Quotient(above, below):
                return f"{self.write(above, _TERM)} / {self.write(below, _APPLIED)}", _TERM
            case ex.Power(base, exponent):
                if exponent.denominator != 1 or exponent < 0:
                    text = self.equation.text
                    raise notation_error("expected a whole number as exponent", text, node.span)
                return f"{self.write(base, _ARGUMENT)} ^ {exponent}", _TERM
            case ex.Function(name, argument):
                return f"{_FUNCTIONS.get(name, name)} {self.write(argument, _ARGUMENT)}", _APPLIED
            case ex.Softmax(argument, index, bound):
                below = ex.Function("exp", rename(argument, {index: bound}))
                return self.expression(
                    ex.Quotient(ex.Function("exp", argument), ex.Sum((bound,), below))
                )
            case ex.Sum(indices, body):
                return self.total(indices, body), _APPLIED
        raise AssertionError(node)

    def total(self, indices: Sequence[str], body: ex.Expression) -> str:
        """Write a sum, one for each of its indices."""
        inner = self.total(indices[1:], body) if len(indices) > 1 else self.write(body, 0)
        return f"sum {self.size(indices[0])} (fun {key(indices[0])} => {inner})"


def _natural(value: int | str) -> str:
    return _free(value) if isinstance(value, str) else str(value)


def _wrapped(pieces: Sequence[str], width: int = 78) -> list[str]:
    """Put pieces into lines, those after the first indented."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) < width:
            lines[-1] += f" {piece}"
        else:
            lines.append(f"    {piece}")
    return lines
