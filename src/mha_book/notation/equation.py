r"""Equations that run: LaTeX in, arrays out."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import mha_book.notation.expression as ex
from mha_book.notation.derivative import gradient, jacobian, lacking
from mha_book.notation.evaluate import (
    Contraction,
    Evaluation,
    axes_text,
    collect,
    einsums,
    index_sizes,
    operands,
    own_indices,
    shape_of,
    subscripts,
)
from mha_book.notation.expression import all_indices, free_indices, is_plain, key, notation_error
from mha_book.notation.latex import render_equation
from mha_book.notation.loops import loops
from mha_book.notation.parser import parse
from mha_book.notation.rules import bind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Equation", "parse_equations", "run_loops"]

_NO_EINSUM: dict[type, str] = {
    ex.Add: "terms that are added",
    ex.Delta: "a Kronecker delta of two free indices",
    ex.Function: "a function",
    ex.Power: "a power",
    ex.Quotient: "a quotient",
    ex.Softmax: "a softmax",
}


class Equation:
    r"""One equation in index notation, typed as LaTeX, that computes what it says.

    An index on the left is free; one that stands only on the right is summed over, within the
    innermost product that has all of its places; a free index that stands more than once in a
    product is batch-like. An equation :math:`A = B = C` defines A, first by B. Where the left
    side is no tensor, the equation is an identity between values.

    Attributes:
        text: the source, which errors show; ``latex`` is without the space around it.
        sides: the expressions between the equals signs, with every sum made explicit; ``left``
            and ``right`` are the first two.
        free: the free indices, in the order of the left side.
        broadcast: indices that a term of the right side may lack.
        target: the tensor that the equation defines; None for an identity.
        right_sides: what is computed: of an identity all sides, otherwise all but the left.
        computed: the first of them, which a call computes.
        operands: the arrays that the equation is computed from, by their Python names.
        scalars: the named scalars in computed positions of the left side.

    Example:
        >>> project = Equation(r"Q^{hia} = X^{ib} W_Q^{hba}")
        >>> project.einsum
        'ib,hba->hia'
        >>> import jax.numpy as jnp
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
        self._take(latex, bound.sides, bound.free, broadcast)

    @classmethod
    def from_sides(
        cls, sides: Sequence[ex.Expression], *, broadcast: Sequence[str] = ()
    ) -> "Equation":
        """Make an equation of a left and one or more right sides in which every sum is explicit."""
        equation = cls.__new__(cls)
        equation._take(render_equation(sides), sides, free_indices(sides[0]), broadcast)
        return equation

    def _take(
        self,
        text: str,
        sides: Sequence[ex.Expression],
        free: Sequence[str],
        broadcast: Sequence[str],
    ) -> None:
        """Take the sides; raise ``ValueError`` if they say nothing or define nothing."""
        self.text, self.latex = text, text.strip()
        self.sides: tuple[ex.Expression, ...] = tuple(sides)
        self.free: tuple[str, ...] = tuple(free)
        self.broadcast: tuple[str, ...] = tuple(broadcast)
        left = self.left = self.sides[0]
        if len(self.sides) < 2:
            message = "expected an equation, with a left and a right side; got one expression"
            raise notation_error(message, text, left.span)
        self.right = self.sides[1]
        self.target = left if isinstance(left, ex.Named) else None
        if self.target is not None and len(free_indices(left)) != sum(
            len(index.indices) if isinstance(index, ex.Affine) else 1
            for index in self.target.indices
        ):
            raise notation_error("expected each index of the left side once", text, left.span)
        self.right_sides = self.sides if self.target is None else self.sides[1:]
        self.computed: ex.Expression = self.right_sides[0]
        self.operands: dict[str, ex.Named] = operands(self.right_sides)
        of_left = operands((left,))
        self.scalars = {name: leaf for name, leaf in of_left.items() if leaf != self.target}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equation) and self.sides == other.sides

    def __hash__(self) -> int:
        return hash(self.sides)

    def __repr__(self) -> str:
        return f"Equation(r{self.latex!r})".replace("\\\\", "\\")

    def __call__(
        self,
        mapping: Mapping[str, Any] | None = None,
        /,
        *,
        dims: Mapping[str, int] | None = None,
        **arrays: Any,
    ) -> jax.Array:
        r"""Compute the left side, with its axes in order, from arrays, in their dtype.

        Args:
            mapping: arrays by the names that LaTeX gives them (``{r"\frac{..}": ...}`` has no
                name; a derivative's is ``"dL/dQ"``) or by their Python names.
            dims: sizes of indices that no array has as an axis.
            **arrays: arrays by their Python names (``W_Q``, ``X_prime``, ``dL_dQ``), each with
                one axis for each index, and named scalars as numbers.
        """
        given, sizes = self.read((self.computed,), mapping, dims, arrays)
        evaluation = Evaluation(given, sizes, self.text)
        value = evaluation(self.computed, self.free)
        target = self.target
        if target is not None and not is_plain(target):
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

        The arguments are those of a call. With the array of the left side's tensor among them, the
        left side is a value too.
        """
        names = {key(name) for name in (*(mapping or {}), *arrays)}
        target = self.target
        sides = self.right_sides
        if target is not None and key(target.name) in names:
            sides = self.sides
        given, sizes = self.read(sides, mapping, dims, arrays)
        evaluation = Evaluation(given, sizes, self.text)
        return tuple(evaluation(side, self.free) for side in sides)

    def read(
        self,
        sides: Sequence[ex.Expression],
        mapping: Mapping[str, Any] | None,
        dims: Mapping[str, int] | None,
        arrays: Mapping[str, Any],
        convert: Callable[[Any], Any] = jnp.asarray,
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Check the arrays from which some sides are to be computed.

        Returns:
            The arrays by their Python names, and the size of every index of the sides.
        """
        required = {**self.scalars, **operands(sides)}
        given = collect(required, self.operands, mapping, arrays, self.text, convert)
        self._check_dims(dims or {})
        shapes = {name: np.shape(array) for name, array in given.items()}
        return given, index_sizes(sides, shapes, dims or {}, self.text)

    def _check_dims(self, dims: Mapping[str, int], scalars: Sequence[str] = ()) -> None:
        """Raise ``ValueError`` if a size is given that is not of an index, or a named scalar."""
        indices = all_indices(*self.sides)
        for name in dims:
            if name not in {*indices, *map(key, indices), *scalars}:
                expected = ", ".join(sorted({*indices, *scalars})) or "none"
                message = f"dims: expected sizes of the indices {expected}; got {name!r}"
                raise notation_error(message, self.text)

    @property
    def einsum(self) -> str:
        """What ``einsum`` calls the right side, numbers and named scalars aside.

        Raises:
            ValueError: the right side is not one contraction of tensors.
        """
        reason = "no einsum says this alone: "
        parts = Contraction(self.computed)
        target = () if self.target is None else (self.target,)
        for factor in (*parts.factors, *target):
            if not isinstance(factor, ex.Named) or not is_plain(factor):
                what = _NO_EINSUM.get(type(factor), "a computed position")
                raise notation_error(reason + what, self.text, factor.span)
        terms = [own_indices(factor) for factor in parts.factors]
        for index in (*self.free, *parts.summed):
            if not any(index in term for term in terms):
                raise notation_error(f"{reason}no tensor has the index {index}", self.text)
        return subscripts(terms, self.free)

    @property
    def einsums(self) -> tuple[str, ...]:
        """All contractions of the right side, the outermost first."""
        return einsums(self.computed, self.free)

    def shapes(self, **dims: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array, that of the left side first.

        Args:
            **dims: the size of each index (``j_prime`` for j'), and the value of each name in a
                computed position.
        """
        scalars, sizes = self._given_sizes(dims)
        arrays = self._arrays()
        return {n: shape_of(leaf, sizes, scalars, self.text) for n, leaf in arrays.items()}

    def _given_sizes(self, dims: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """Return the values of named scalars, and the size of every index."""
        leaves = {**self.scalars, **self.operands}
        self._check_dims(dims, [name for name, leaf in leaves.items() if not leaf.indices])
        scalars = {name: dims[name] for name in dims if name in leaves}
        return scalars, index_sizes(self.sides, {}, dims, self.text)

    def _arrays(self) -> dict[str, ex.Named]:
        first = {} if self.target is None else {key(self.target.name): self.target}
        return {**first, **self.scalars, **self.operands}

    def flops(self, **dims: int) -> int:
        """Return how many operations on numbers a call makes.

        A multiplication with its addition counts two; a multiplication, an addition, a division,
        a function, a power one; each element of a softmax five (maximum, difference,
        exponential, sum, quotient). Operations on scalars alone do not count, nor copies.

        Args:
            **dims: as in :meth:`shapes`.
        """
        scalars, sizes = self._given_sizes(dims)
        needed = self.shapes(**dims)
        abstract = {
            name: jax.ShapeDtypeStruct(needed[name], jnp.float32)
            for name in operands((self.computed,))
            if name not in scalars
        }
        operations = 0

        def run(arrays: dict[str, Any]) -> jax.Array:
            nonlocal operations
            evaluation = Evaluation({**arrays, **scalars}, sizes, self.text)
            value = evaluation(self.computed, self.free)
            operations = evaluation.operations
            return value

        jax.eval_shape(run, abstract)  # counted by making the call, on arrays without values
        return operations

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
        sides = gradient(self.left, self.right, name)
        return Equation.from_sides(sides, broadcast=lacking(*sides))

    def jacobian(self, name: str) -> "Equation":
        """Return the derivative of each element of the left side by each of an array's."""
        return Equation.from_sides(jacobian(self.left, self.right, name))

    def diagram(self) -> "Figure":
        """Draw the tensor network: tensors joined by the indices that they are summed over."""
        from mha_book.notation.diagram import draw  # needs networkx and matplotlib, else nothing

        return draw([self])

    def _repr_markdown_(self) -> str:
        """Write the equation for a notebook: typeset, below it its einsums and arrays' axes."""
        told = {
            name: f"`{name}{axes_text(leaf, '[]') if leaf.indices else ''}`"
            for name, leaf in self._arrays().items()
        }
        target = [] if self.target is None else [told.pop(key(self.target.name))]
        arrays = " → ".join([", ".join(told.values()), *target][-2 if told else -1 :])
        written = ", ".join(f"`{text}`" for text in self.einsums)
        below = " · ".join(text for text in (written, arrays) if text)
        return f"$$\n{self.latex}\n$$\n\n{below}"


def parse_equations(latex: str, *, broadcast: Sequence[str] = ()) -> tuple[Equation, ...]:
    r"""Read a piece of LaTeX with any number of equations, one to a row or with commas between.

    Args:
        latex: the equations, in ``aligned`` or without.
        broadcast: indices that a term may lack in any of them, such as those of a bias.

    Example:
        >>> [e.einsum for e in parse_equations(r"q^a = x^b W^{ba}, \qquad s = q^a k^a")]
        ['b,ba->a', 'a,a->']
    """
    found = []
    for statement in parse(latex):
        free = free_indices(statement.sides[0])
        start, end = statement.span or (0, len(latex))
        own = tuple(index for index in broadcast if index in free)
        found.append(Equation(latex[start:end], broadcast=own))
    return tuple(found)


def run_loops(
    equation: Equation,
    mapping: Mapping[str, Any] | None = None,
    /,
    *,
    dims: Mapping[str, int] | None = None,
    **arrays: Any,
) -> np.ndarray:
    """Run the loops of an equation in float64, on arrays as the equation takes them.

    Args:
        equation: what is computed.
        mapping: arrays by their names in LaTeX.
        dims: sizes of indices that no array has as an axis.
        **arrays: arrays by their Python names.

    Returns:
        What calling the equation returns, element by element.
    """
    given, sizes = equation.read((equation.computed,), mapping, dims, arrays, _float64)
    source, extra = equation.source()
    scope: dict[str, Any] = {"np": np, "math": math}
    exec(source, scope)
    (function,) = (value for name, value in scope.items() if name.startswith("compute_"))
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    result = function(
        **{name: array for name, array in given.items() if name in names},
        **{name: sizes[index] for index, name in extra.items()},
    )
    return np.asarray(result, np.float64)  # an integer of many digits would be an object


def _float64(array: Any) -> Any:
    """A scalar as it came: one that is an integer may be a size."""
    found = np.asarray(array)
    return found.astype(np.float64) if found.ndim else found[()]
