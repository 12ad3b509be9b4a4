r"""Where the elements of a tensor lie that its indices reach.

An index reaches its own range. A computed position, as in :math:`X^{i(hH+a)}`, reaches what the
values of its indices give.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mha_book.notation.dimensions import Named, whole_number
from mha_book.notation.errors import notation_error
from mha_book.notation.expression import free_indices, key

__all__ = ["all_once", "inside", "positions", "shape_of"]


def positions(
    leaf: Named,
    axes: Sequence[str],
    sizes: Mapping[str, int],
    scalars: Mapping[str, Any],
    source: str,
) -> tuple[np.ndarray, ...]:
    """Return for each axis of a tensor the positions that its indices reach.

    Args:
        leaf: the tensor.
        axes: the indices in the order of the axes along which the positions lie.
        sizes: the size of each index.
        scalars: the values of the names in computed positions, by their Python names.
        source: the equation.

    Returns:
        Arrays of integers of one rank, that of ``axes``, to index the tensor with.
    """
    grid = {
        index: np.arange(sizes[index]).reshape([-1 if other == index else 1 for other in axes])
        for index in axes
    }

    def value(factor: int | str) -> int:
        if isinstance(factor, int):
            return factor
        name = key(factor)
        if name not in scalars:
            raise notation_error(f"{name}: missing; expected an integer", source, leaf.span)
        return whole_number(scalars[name], name, source, leaf.span)

    found = []
    for index in leaf.indices:
        if isinstance(index, str):
            found.append(grid[index])
        else:
            terms = (value(factor) * grid[own] for factor, own in index.terms)
            found.append(sum(terms, np.zeros([1] * len(axes), int)) + value(index.offset))
    return tuple(found)


def shape_of(
    leaf: Named, sizes: Mapping[str, int], scalars: Mapping[str, Any], source: str
) -> tuple[int, ...]:
    """Return the shape of a tensor, for computed positions the least that has them all."""
    return _extent(positions(leaf, free_indices(leaf), sizes, scalars, source))


def _extent(at: tuple[np.ndarray, ...]) -> tuple[int, ...]:
    return tuple(int(axis.max(initial=-1)) + 1 for axis in at)


def inside(leaf: Named, at: tuple[np.ndarray, ...], shape: tuple[int, ...], source: str) -> None:
    """Raise ``ValueError`` unless an array of the given shape has all of the positions."""
    for axis, (where, size) in enumerate(zip(at, shape, strict=True)):
        low, high = int(where.min(initial=0)), int(where.max(initial=-1))
        if low < 0 or high >= size:
            message = f"{key(leaf.name)}: axis {axis}: expected positions {low} to {high}"
            raise notation_error(f"{message}; got size {size}", source, leaf.span)


def all_once(leaf: Named, at: tuple[np.ndarray, ...], source: str) -> tuple[int, ...]:
    """Return the shape of an array in which the positions are all, each once.

    Raises:
        ValueError: there is none, so that the indices do not say what each element is.
    """
    shape = _extent(at)
    inside(leaf, at, shape, source)
    flat = np.ravel_multi_index(np.broadcast_arrays(*at), shape)
    distinct = len(np.unique(flat))
    if not flat.size == distinct == prod(shape):
        message = f"{key(leaf.name)}: expected indices that reach each element once"
        got = f"{flat.size} positions, {distinct} of them distinct, for {prod(shape)} elements"
        raise notation_error(f"{message}; got {got}", source, leaf.span)
    return shape
