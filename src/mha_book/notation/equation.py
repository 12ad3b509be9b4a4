r"""Equations that run: LaTeX in, arrays out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.notation.contraction import flatten, subscripts
from mha_book.notation.dimensions import Leaf, collect, index_sizes, index_text, operands, shape_of
from mha_book.notation.errors import notation_error
from mha_book.notation.evaluate import Evaluation
from mha_book.notation.expression import (
    Add,
    Affine,
    Delta,
    Derivative,
    Expression,
    Function,
    Power,
    Quotient,
    Softmax,
    Tensor,
    all_indices,
    children,
    free_indices,
    key,
)
from mha_book.notation.latex import render
from mha_book.notation.loops import loops
from mha_book.notation.parser import parse
from mha_book.notation.rules import bind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Equation"]


class Equation:
    r"""One equation in index notation, typed as LaTeX, that computes what it says.

    An index on the left is free; one that stands only on the right is summed over, within the
    innermost product that has all of its places; a free index that stands more than once in a
    product is batch-like. An equation :math:`A = B = C` defines A, first by B. Where the left
    side is no tensor, the equation is an identity between values.

    Attributes:
        latex: the source.
        sides: the expressions between the equals signs, with every sum made explicit.
        free: the free indices, in the order of the left side.
        broadcast: indices that a term of the right side may lack.

    Example:
        >>> project = Equation(r"Q^{hia} = X^{ib} W_Q^{hba}")
        >>> project.einsum
        'ib,hba->hia'
        >>> project(X=jnp.ones((3, 5)), W_Q=jnp.ones((2, 5, 7))).shape
        (2, 3, 7)
        >>> project.flops(h=2, i=3, a=7, b=5)
        420
    """

    def __init__(self, latex: str, *, strict: bool = False, broadcast: Sequence[str] = ()) -> None:
        """Read an equation.

        Args:
            latex: one equation.
            strict: whether to read it by Einstein's rule alone: in a product an index that
                stands twice is summed over, and each free index stands once.
            broadcast: indices that a term of the right side may lack, such as that of the tokens
                in a bias.

        Raises:
            ValueError: what the notation does not have, with a caret at the place.
        """
        statements = parse(latex)
        if len(statements) != 1:
            message = f"expected one equation; got {len(statements)}"
            raise notation_error(message, latex, statements[1].span if statements else None)
        bound = bind(statements[0], strict=strict, broadcast=tuple(broadcast))
        self._set(latex, bound.sides, bound.free, broadcast)

    @classmethod
    def from_sides(
        cls, sides: Sequence[Expression], *, broadcast: Sequence[str] = ()
    ) -> "Equation":
        """Make an equation of expressions in which every sum is explicit.

        Args:
            sides: the left side and at least one right side.
            broadcast: indices that a term of the right side may lack.
        """
        equation = cls.__new__(cls)
        latex = " = ".join(render(side) for side in sides)
        equation._set(latex, sides, free_indices(sides[0]), broadcast)
        return equation

    def _set(
        self,
        latex: str,
        sides: Sequence[Expression],
        free: Sequence[str],
        broadcast: Sequence[str],
    ) -> None:
        self.latex = latex.strip()
        self._source = latex
        self.sides = tuple(sides)
        self.free = tuple(free)
        self.broadcast = tuple(broadcast)
        left = self.sides[0]
        if len(self.sides) < 2:
            message = "expected an equation, with a left and a right side; got one expression"
            raise notation_error(message, latex, left.span)
        if isinstance(left, Tensor | Derivative) and len(free_indices(left)) != sum(
            len(index.indices) if isinstance(index, Affine) else 1 for index in left.indices
        ):
            message = "expected each index of the left side once"
            raise notation_error(message, latex, left.span)

    def __repr__(self) -> str:
        return f"Equation(r{self.latex!r})".replace("\\\\", "\\")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equation) and self.sides == other.sides

    def __hash__(self) -> int:
        return hash(self.sides)

    @property
    def left(self) -> Expression:
        """The left side."""
        return self.sides[0]

    @property
    def right(self) -> Expression:
        """The first right side."""
        return self.sides[1]

    @property
    def is_identity(self) -> bool:
        """Whether the left side is no tensor, so that the equation defines none."""
        return not isinstance(self.left, Tensor | Derivative)

    @property
    def target(self) -> Leaf | None:
        """The tensor that the equation defines; None for an identity."""
        return self.left if isinstance(self.left, Tensor | Derivative) else None

    @property
    def computed(self) -> Expression:
        """The expression that a call computes: the first right side, of an identity the left."""
        return self.left if self.is_identity else self.right

    @property
    def operands(self) -> dict[str, Leaf]:
        """The arrays that the equation is computed from, by their Python names."""
        return operands(self._values)

    @property
    def _values(self) -> tuple[Expression, ...]:
        return self.sides if self.is_identity else self.sides[1:]

    def __call__(
        self,
        mapping: Mapping[str, Any] | None = None,
        /,
        *,
        dims: Mapping[str, int] | None = None,
        **arrays: Any,
    ) -> jax.Array:
        r"""Compute the left side from arrays.

        Args:
            mapping: arrays by the names that LaTeX gives them (``{r"\frac{..}": ...}`` has no
                name; a derivative's is ``"dL/dQ"``) or by their Python names.
            dims: sizes of indices that no array has as an axis.
            **arrays: arrays by their Python names (``W_Q``, ``X_prime``, ``dL_dQ``), each with
                one axis for each index, and named scalars as numbers.

        Returns:
            An array with the axes of the left side, in the arrays' dtype.

        Raises:
            ValueError: an array is missing, unexpected or of the wrong rank; an index has two
                sizes.
        """
        given, sizes = self.read(mapping, dims, arrays)
        evaluation = Evaluation(given, sizes, self._source)
        value = evaluation(self.computed, self.free)
        target = self.target
        if target is not None and any(isinstance(index, Affine) for index in target.indices):
            value = evaluation.assign(target, self.free, value)
        return value

    def values(
        self,
        mapping: Mapping[str, Any] | None = None,
        /,
        *,
        dims: Mapping[str, int] | None = None,
        **arrays: Any,
    ) -> tuple[jax.Array, ...]:
        """Compute every side, with the axes in the order of the free indices.

        Args:
            mapping: arrays by their names in LaTeX.
            dims: sizes of indices that no array has as an axis.
            **arrays: arrays by their Python names. With that of the left side's tensor among
                them, the left side is a value too.
        """
        names = {key(name) for name in (*(mapping or {}), *arrays)}
        target = self.target
        sides = self._values
        if target is not None and key(target.name) in names:
            sides = self.sides
        given, sizes = self._read(sides, mapping, dims, arrays)
        evaluation = Evaluation(given, sizes, self._source)
        return tuple(evaluation(side, self.free) for side in sides)

    def read(
        self,
        mapping: Mapping[str, Any] | None,
        dims: Mapping[str, int] | None,
        arrays: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Check the arrays of a call; return them, and the size of every index."""
        return self._read((self.computed,), mapping, dims, arrays)

    def _read(
        self,
        sides: Sequence[Expression],
        mapping: Mapping[str, Any] | None,
        dims: Mapping[str, int] | None,
        arrays: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        required = {**self._scalars(), **operands(sides)}
        given = collect(required, self.operands, mapping, arrays, self._source)
        self._check_dims(dims or {})
        shapes = {name: np.shape(array) for name, array in given.items()}
        return given, index_sizes(sides, shapes, dims or {}, self._source)

    def _scalars(self) -> dict[str, Leaf]:
        """The named scalars of the left side's computed positions."""
        found = operands(self.sides[:1])
        return {name: leaf for name, leaf in found.items() if leaf != self.target}

    def _check_dims(self, dims: Mapping[str, int], scalars: Sequence[str] = ()) -> None:
        indices = set().union(*(all_indices(side) for side in self.sides))
        for name in dims:
            if name not in {*indices, *map(key, indices), *scalars}:
                expected = ", ".join(sorted({*indices, *scalars}))
                message = f"dims: expected sizes of the indices {expected}; got {name!r}"
                raise notation_error(message, self._source, None)

    @property
    def einsum(self) -> str:
        """What ``einsum`` calls the right side, numbers and named scalars aside.

        Raises:
            ValueError: the right side is not one contraction of tensors.
        """
        reason = "no einsum says this alone: "
        parts = flatten(self.computed)
        for factor in parts.factors:
            if not isinstance(factor, Tensor | Derivative) or not _plain(factor):
                what = _KINDS.get(type(factor), "a computed position")
                raise notation_error(reason + what, self._source, factor.span)
        terms = [_own(factor) for factor in parts.factors]
        present = {index for term in terms for index in term}
        for index in (*self.free, *parts.summed):
            if index not in present:
                raise notation_error(f"{reason}no tensor has the index {index}", self._source, None)
        if self.target is not None and not _plain(self.target):
            raise notation_error(f"{reason}a computed position", self._source, self.target.span)
        return subscripts(terms, self.free)

    @property
    def einsums(self) -> tuple[str, ...]:
        """All contractions of the right side, the outermost first."""
        return tuple(_einsums(self.computed, self.free))

    def shapes(self, **dims: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array, that of the left side first.

        Args:
            **dims: the size of each index (``j_prime`` for j'), and the value of each name in a
                computed position.
        """
        scalars = self._dims_scalars(dims)
        sizes = index_sizes(self.sides, {}, dims, self._source)
        leaves = {**operands(self.sides[:1]), **self.operands}
        return {
            name: shape_of(leaf, sizes, scalars, self._source) if leaf.indices else ()
            for name, leaf in leaves.items()
        }

    def flops(self, **dims: int) -> int:
        """Return how many operations on numbers a call makes.

        A multiplication with its addition counts two; a multiplication, an addition, a division,
        a function, a power one; each element of a softmax five (maximum, difference,
        exponential, sum, quotient). Operations on scalars alone do not count, nor copies.

        Args:
            **dims: as in :meth:`shapes`.
        """
        scalars = self._dims_scalars(dims)
        needed = operands((self.computed,))
        shapes = self.shapes(**dims)
        abstract = {
            name: jax.ShapeDtypeStruct(shapes[name], jnp.float32)
            for name in needed
            if name not in scalars
        }
        sizes = index_sizes(self.sides, {}, dims, self._source)
        operations = 0

        def run(arrays: dict[str, Any]) -> jax.Array:
            nonlocal operations
            evaluation = Evaluation({**arrays, **scalars}, sizes, self._source)
            value = evaluation(self.computed, self.free)
            operations = evaluation.operations
            return value

        jax.eval_shape(run, abstract)
        return operations

    def _dims_scalars(self, dims: Mapping[str, int]) -> dict[str, int]:
        leaves = {**self._scalars(), **self.operands}
        scalars = {name: dims[name] for name in dims if name in leaves}
        self._check_dims(dims, [name for name, leaf in leaves.items() if not leaf.indices])
        return scalars

    def source(self) -> tuple[str, dict[str, str]]:
        """Return the loops, and for each index without an array the argument that is its size."""
        return loops(self.computed, self.target, self.free, self.latex)

    def loops(self) -> str:
        """Return the source of a Python function that computes the left side by plain loops.

        It takes NumPy arrays by their Python names, and the size of each index that no array has
        as an axis. It needs ``math``, and NumPy as ``np``.

        Example:
            >>> print(Equation(r"y^i = A^{ij} x^j").loops())
            # y^i = A^{ij} x^j
            def compute_y(A, x):
                size_i, size_j = A.shape
                y = np.zeros((size_i,))
                for i in range(size_i):
                    total = 0.0
                    for j in range(size_j):
                        total += A[i, j] * x[j]
                    y[i] = total
                return y
        """
        return self.source()[0]

    def gradient(self, name: str) -> "Equation":
        r"""Return the gradient by one of the arrays, as an equation.

        Args:
            name: the array, by its Python name or its name in LaTeX.

        Returns:
            What :math:`\partial L / \partial W` is, from the gradient by the left side's tensor.
        """
        from mha_book.notation.gradient import adjoint, lacking

        left, right = adjoint(self, name)
        return Equation.from_sides((left, right), broadcast=lacking(left, right))

    def jacobian(self, name: str) -> "Equation":
        """Return the derivative of each element of the left side by each of an array's.

        Args:
            name: the array, by its Python name or its name in LaTeX.
        """
        from mha_book.notation.jacobian import jacobian

        return Equation.from_sides(jacobian(self, name))

    def diagram(self) -> "Figure":
        """Draw the tensor network: tensors joined by the indices that they are summed over."""
        from mha_book.notation.diagram import draw

        return draw([self])

    def _repr_markdown_(self) -> str:
        leaves = {**operands(self.sides[:1]), **self.operands}
        told = {name: f"`{name}{_brackets(leaf)}`" for name, leaf in leaves.items()}
        target = told.pop(key(self.target.name)) if self.target is not None else None
        shapes = ", ".join(told.values()) + (f" → {target}" if target else "")
        einsums = ", ".join(f"`{text}`" for text in self.einsums)
        below = " · ".join(filter(None, (einsums, shapes.strip())))
        return f"$$\n{self.latex}\n$$\n\n{below}"


_KINDS: dict[type, str] = {
    Add: "terms that are added",
    Delta: "a Kronecker delta of two free indices",
    Function: "a function",
    Power: "a power",
    Quotient: "a quotient",
    Softmax: "a softmax",
}


def _plain(leaf: Leaf) -> bool:
    return all(isinstance(index, str) for index in leaf.indices)


def _own(factor: Expression) -> tuple[str, ...]:
    """The indices of an operand as einsum wants them: of a tensor, as often as they stand."""
    if isinstance(factor, Tensor | Derivative) and _plain(factor):
        return tuple(index for index in factor.indices if isinstance(index, str))
    return free_indices(factor)


def _einsums(node: Expression, output: tuple[str, ...] | None = None) -> list[str]:
    parts = flatten(node)
    found = []
    if len(parts.factors) > 1 or (parts.factors and parts.summed):
        terms = [_own(factor) for factor in parts.factors]
        present = {index for term in terms for index in term}
        whole = parts.output if output is None else output
        found = [subscripts(terms, tuple(index for index in whole if index in present))]
    for factor in (*parts.factors, *parts.scalars):
        for child in children(factor):
            found += _einsums(child)
    return found


def _brackets(leaf: Leaf) -> str:
    if not leaf.indices:
        return ""
    return f"[{', '.join(index_text(index) for index in leaf.indices)}]"
