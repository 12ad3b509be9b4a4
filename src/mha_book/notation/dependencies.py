"""What equations of one system need from one another: their order, and the sizes of indices."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mha_book.notation.equation import Equation
from mha_book.notation.expression import Derivative, Tensor, all_indices, key

__all__ = ["Sizes", "in_order", "name_of", "within"]

Leaf = Tensor | Derivative


def name_of(equation: Equation) -> str:
    """Return the Python name of what an equation defines.

    Raises:
        ValueError: the equation is an identity, which defines nothing.
    """
    if not isinstance(equation.left, Leaf):
        raise ValueError(f"expected a tensor on the left side, got {equation.latex}")
    return key(equation.left.name)


def in_order(equations: Sequence[Equation]) -> tuple[Equation, ...]:
    """Return the equations with each behind those that it uses, else in the given order.

    Args:
        equations: each defines a tensor.

    Raises:
        ValueError: two equations define the same tensor, a tensor has two numbers of axes, or
            equations use one another in a circle.
    """
    defined: dict[str, Equation] = {}
    axes: dict[str, tuple[int, str]] = {}
    for equation in equations:
        name = name_of(equation)
        if name in defined:
            raise ValueError(
                f"{name}: expected one equation that defines it, got two: "
                f"{defined[name].latex} and {equation.latex}"
            )
        defined[name] = equation
        for leaf in (equation.left, *equation.operands.values()):
            assert isinstance(leaf, Leaf)
            rank, place = axes.setdefault(key(leaf.name), (len(leaf.indices), equation.latex))
            if rank != len(leaf.indices):
                raise ValueError(
                    f"{leaf.name}: expected {rank} indices as in {place}, "
                    f"got {len(leaf.indices)} in {equation.latex}"
                )
    uses = {name: defined.keys() & e.operands.keys() for name, e in defined.items()}
    found: dict[str, Equation] = {}
    while len(found) < len(defined):
        ready = (name for name in defined if name not in found and uses[name] <= found.keys())
        name = next(ready, "")
        if not name:
            raise ValueError(
                "expected equations that can be run one after another, got a circle: "
                + " uses ".join(
                    _circle({n: uses[n] - found.keys() for n in uses if n not in found})
                )
            )
        found[name] = defined[name]
    return tuple(found.values())


def _circle(uses: Mapping[str, Iterable[str]]) -> list[str]:
    """Return names of which each uses the next, the last the same as the first."""
    walk = [next(iter(uses))]
    while walk.count(walk[-1]) == 1:
        walk.append(min(uses[walk[-1]]))
    return walk[walk.index(walk[-1]) :]


class Sizes:
    """The sizes of the indices of a system, read off its arrays as they come.

    Attributes:
        known: the sizes so far, by index.
    """

    def __init__(self, dims: Mapping[str, int] | None = None) -> None:
        """Begin with sizes that are given."""
        self.known = dict(dims or {})
        self._source = dict.fromkeys(self.known, "dims")

    def read(self, leaf: Leaf, array: Any) -> None:
        """Take the sizes of an array's axes.

        Raises:
            ValueError: an index has another size already.
        """
        shape = np.shape(array)
        for index, size in zip(leaf.indices, shape, strict=False):
            if not isinstance(index, str):
                continue
            if self.known.setdefault(index, size) != size:
                raise ValueError(
                    f"index {index}: expected {self.known[index]} as in {self._source[index]}, "
                    f"got {size} in {leaf.name}, shape {shape}: a letter has one size in a system"
                )
            self._source.setdefault(index, leaf.name)

    def of(self, index: str, scalar: str) -> int:
        """Return the size of an index, which a named scalar stands for."""
        if index not in self.known:
            raise ValueError(
                f"{scalar}: expected its value, or an array that has the index {index}"
            )
        return self.known[index]


def within(equation: Equation, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of those indices that the equation has, j' as for j."""
    own = set().union(*(all_indices(side) for side in equation.sides))
    plain = {index: index.rstrip("'") for index in own if index not in sizes}
    found = {index: size for index, size in sizes.items() if index in own}
    return found | {index: sizes[letter] for index, letter in plain.items() if letter in sizes}
