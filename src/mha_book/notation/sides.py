r"""What an equation consists of: its sides, its free indices, the arrays that it needs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.notation.dimensions import Named, collect, index_sizes, operands
from mha_book.notation.errors import notation_error
from mha_book.notation.expression import (
    Affine,
    Derivative,
    Expression,
    Tensor,
    all_indices,
    free_indices,
    key,
)

__all__ = ["Sides"]


class Sides:
    """The expressions of an equation, in which every sum is explicit.

    Attributes:
        text: the source, which errors show.
        sides: the expressions between the equals signs.
        free: the free indices, in the order of the left side.
        broadcast: indices that a term of the right side may lack.
    """

    def __init__(
        self,
        text: str,
        sides: Sequence[Expression],
        free: Sequence[str],
        broadcast: Sequence[str] = (),
    ) -> None:
        """Take the sides; raise ``ValueError`` if they say nothing or define nothing."""
        self.text = text
        self.sides = tuple(sides)
        self.free = tuple(free)
        self.broadcast = tuple(broadcast)
        left = self.sides[0]
        if len(self.sides) < 2:
            message = "expected an equation, with a left and a right side; got one expression"
            raise notation_error(message, text, left.span)
        if isinstance(left, Tensor | Derivative) and len(free_indices(left)) != sum(
            len(index.indices) if isinstance(index, Affine) else 1 for index in left.indices
        ):
            message = "expected each index of the left side once"
            raise notation_error(message, text, left.span)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sides) and self.sides == other.sides

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
    def target(self) -> Named | None:
        """The tensor that the equation defines; None for an identity."""
        return self.left if isinstance(self.left, Tensor | Derivative) else None

    @property
    def computed(self) -> Expression:
        """The expression that a call computes: the first right side, of an identity the left."""
        return self.left if self.is_identity else self.right

    @property
    def operands(self) -> dict[str, Named]:
        """The arrays that the equation is computed from, by their Python names."""
        return operands(self.right_sides)

    @property
    def scalars(self) -> dict[str, Named]:
        """The named scalars in computed positions of the left side, by their Python names."""
        found = operands(self.sides[:1])
        return {name: leaf for name, leaf in found.items() if leaf != self.target}

    @property
    def right_sides(self) -> tuple[Expression, ...]:
        """The sides that are computed: of an identity all, otherwise all but the left."""
        return self.sides if self.is_identity else self.sides[1:]

    def read(
        self,
        sides: Sequence[Expression],
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
        self.check_dims(dims or {})
        shapes = {name: np.shape(array) for name, array in given.items()}
        return given, index_sizes(sides, shapes, dims or {}, self.text)

    def check_dims(self, dims: Mapping[str, int], scalars: Sequence[str] = ()) -> None:
        """Raise ``ValueError`` if a size is given that is not of an index, or a named scalar."""
        indices = set().union(*(all_indices(side) for side in self.sides))
        for name in dims:
            if name not in {*indices, *map(key, indices), *scalars}:
                expected = ", ".join(sorted({*indices, *scalars})) or "none"
                message = f"dims: expected sizes of the indices {expected}; got {name!r}"
                raise notation_error(message, self.text)
