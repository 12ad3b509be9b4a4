r"""Equations that run: LaTeX in, arrays out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from mha_book.notation import describe
from mha_book.notation.contraction import einsums
from mha_book.notation.errors import notation_error
from mha_book.notation.evaluate import Evaluation
from mha_book.notation.expression import (
    Affine,
    Expression,
    free_indices,
    key,
)
from mha_book.notation.latex import render
from mha_book.notation.loops import loops
from mha_book.notation.parser import parse
from mha_book.notation.rules import bind
from mha_book.notation.sides import Sides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Equation", "parse_equations"]


class Equation(Sides):
    r"""One equation in index notation, typed as LaTeX, that computes what it says.

    An index on the left is free; one that stands only on the right is summed over, within the
    innermost product that has all of its places; a free index that stands more than once in a
    product is batch-like. An equation :math:`A = B = C` defines A, first by B. Where the left
    side is no tensor, the equation is an identity between values.

    Attributes:
        text: the source, which errors show.
        sides: the expressions between the equals signs, with every sum made explicit.
        free: the free indices, in the order of the left side.
        broadcast: indices that a term of the right side may lack.

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
        super().__init__(latex, bound.sides, bound.free, broadcast)

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
        Sides.__init__(equation, latex, sides, free_indices(sides[0]), broadcast)
        return equation

    @property
    def latex(self) -> str:
        """The source, without the space around it."""
        return self.text.strip()

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
        given, sizes = self.read((self.computed,), mapping, dims, arrays)
        evaluation = Evaluation(given, sizes, self.text)
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
        sides = self.right_sides
        if target is not None and key(target.name) in names:
            sides = self.sides
        given, sizes = self.read(sides, mapping, dims, arrays)
        evaluation = Evaluation(given, sizes, self.text)
        return tuple(evaluation(side, self.free) for side in sides)

    @property
    def einsum(self) -> str:
        """What ``einsum`` calls the right side, numbers and named scalars aside.

        Raises:
            ValueError: the right side is not one contraction of tensors.
        """
        return describe.einsum(self)

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
        return describe.shapes(self, dims)

    def flops(self, **dims: int) -> int:
        """Return how many operations on numbers a call makes.

        A multiplication with its addition counts two; a multiplication, an addition, a division,
        a function, a power one; each element of a softmax five (maximum, difference,
        exponential, sum, quotient). Operations on scalars alone do not count, nor copies.

        Args:
            **dims: as in :meth:`shapes`.
        """
        return describe.flops(self, dims)

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
        return describe.markdown(self)


def parse_equations(latex: str, *, broadcast: Sequence[str] = ()) -> tuple[Equation, ...]:
    r"""Read a piece of LaTeX with any number of equations, one to a row or with commas between.

    Args:
        latex: the equations, in ``aligned`` or without.
        broadcast: indices that a term may lack in any of them, such as those of a bias.

    Raises:
        ValueError: an equation cannot be read; the message has a caret at the place.

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
