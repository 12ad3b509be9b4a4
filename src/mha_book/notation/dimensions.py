r"""The sizes of indices, and where the elements lie that they reach.

An index has one size in the whole equation, wherever it stands. One that no array has as an
axis (in a Kronecker delta, in a computed position) takes the size of the delta's other index,
that of its letter with fewer primes, or has to be given. An index reaches its own range; a computed
position, as in :math:`X^{i(hH+a)}`, reaches what the values of its indices give.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mha_book.notation.expression import (
    Affine,
    Delta,
    Expression,
    Index,
    Named,
    Softmax,
    Span,
    Tensor,
    all_indices,
    children,
    free_indices,
    key,
    leaves,
    notation_error,
)

__all__ = [
    "all_once",
    "axes_text",
    "collect",
    "index_sizes",
    "inside",
    "operands",
    "positions",
    "shape_of",
]


def operands(sides: Iterable[Expression]) -> dict[str, Named]:
    """Return the arrays of the expressions by their Python names, each where it first stands.

    The named scalars of computed positions are among them.
    """
    found: dict[str, Named] = {}
    for leaf in (leaf for side in sides for leaf in leaves(side)):
        if isinstance(leaf, Named):
            found.setdefault(key(leaf.name), leaf)
            for name in _scalars(leaf):
                found.setdefault(key(name), Tensor(name, span=leaf.span))
    return found


def _scalars(leaf: Named) -> tuple[str, ...]:
    """The names in the computed positions of a tensor."""
    found: list[int | str] = []
    for index in leaf.indices:
        if isinstance(index, Affine):
            found += [factor for factor, _ in index.terms] + [index.offset]
    return tuple(name for name in found if isinstance(name, str))


def collect(
    required: Mapping[str, Named],
    allowed: Iterable[str],
    mapping: Mapping[str, Any] | None,
    arrays: Mapping[str, Any],
    source: str,
    convert: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the given arrays by their Python names: none missing, none that the equation lacks.

    Args:
        required: the arrays that have to be given.
        allowed: the names of those that may be given.
        mapping: arrays by the names that LaTeX gives them, or by their Python names.
        arrays: arrays by their Python names.
        source: the equation.
        convert: makes an array of what is no number.

    Returns:
        Numbers as they came; anything else as an array.

    Raises:
        ValueError: an array is missing, is given twice, is not in the equation, or is no array.
    """
    allowed = {*allowed, *required}
    given: dict[str, Any] = {}
    for name, value in [*(mapping or {}).items(), *arrays.items()]:
        found = key(name.replace(" ", ""))
        if found not in allowed:
            expected = ", ".join(sorted(allowed)) or "none"
            raise notation_error(f"unexpected array {name!r}; expected {expected}", source)
        if found in given:
            raise notation_error(f"{found}: given twice", source)
        given[found] = value
    for name, leaf in required.items():
        if name not in given:
            what = f"an array with axes {axes_text(leaf)}" if leaf.indices else "a number"
            raise notation_error(f"{name}: missing; expected {what}", source, leaf.span)
    return {name: _array(name, value, source, convert) for name, value in given.items()}


def _array(name: str, value: Any, source: str, convert: Callable[[Any], Any]) -> Any:
    if type(value) in (int, float):
        return value
    try:
        return convert(value)
    except (TypeError, ValueError):
        message = f"{name}: expected an array or a number; got {type(value).__name__}"
        raise notation_error(message, source) from None


def axes_text(leaf: Named, brackets: str = "()") -> str:
    """Name the axes of a tensor: ``(h, b, a)``."""
    return ", ".join(_index_text(index) for index in leaf.indices).join(brackets)


def _index_text(index: Index) -> str:
    """Write an index as an error says it."""
    if isinstance(index, str):
        return index
    terms = [i if factor == 1 else f"{factor} {i}" for factor, i in index.terms]
    return " + ".join(terms + ([] if index.offset == 0 else [str(index.offset)]))


def index_sizes(
    sides: Sequence[Expression],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, Any],
    source: str,
) -> dict[str, int]:
    """Return the size of every index of the expressions.

    Args:
        sides: the expressions.
        shapes: the shapes of arrays, by their Python names. A tensor without one says nothing.
        dims: sizes that are given, by index (``"j'"``) or by its Python name (``"j_prime"``).
        source: the equation.

    Raises:
        ValueError: a tensor has the wrong rank; an index has two sizes, or none.
    """
    names = dict.fromkeys(index for side in sides for index in sorted(all_indices(side)))
    found: dict[str, tuple[int, str]] = {}
    for index in names:
        given = dims.get(index, dims.get(key(index)))
        if given is not None:
            found[index] = (_whole_number(given, f"dims[{index!r}]", source), "as given")
    for leaf in (leaf for side in sides for leaf in leaves(side)):
        if isinstance(leaf, Named) and key(leaf.name) in shapes:
            _read(leaf, shapes[key(leaf.name)], found, source)
    _spread(sides, names, found, source)
    for index in names:
        if index not in found:
            message = f"index {index}: no array has it as an axis; expected dims={{{index!r}: ...}}"
            raise notation_error(message, source, _where(index, sides))
    return {index: size for index, (size, _) in found.items()}


def _read(
    leaf: Named, shape: tuple[int, ...], found: dict[str, tuple[int, str]], source: str
) -> None:
    """Take the sizes of a tensor's axes, or compare them."""
    name = key(leaf.name)
    if len(shape) != len(leaf.indices):
        expected = f"axes {axes_text(leaf)}, that is rank {len(leaf.indices)}"
        message = f"{name}: expected {expected}; got rank {len(shape)}, shape {shape}"
        raise notation_error(message, source, leaf.span)
    for axis, (index, size) in enumerate(zip(leaf.indices, shape, strict=True)):
        if isinstance(index, str):
            known, why = found.setdefault(index, (size, f"as in axis {axis} of {name}"))
            if known != size:
                message = f"{name}: index {index} (axis {axis}): expected {known}, {why}"
                raise notation_error(f"{message}; got {size}, shape {shape}", source, leaf.span)


def _spread(
    sides: Sequence[Expression],
    names: Iterable[str],
    found: dict[str, tuple[int, str]],
    source: str,
) -> None:
    """Give sizes to indices that no array has: by deltas first, then by the letter."""
    pairs = [pair for side in sides for pair in _equal(side)]
    while True:
        for first, second, _ in pairs * len(pairs):
            for one, other in ((first, second), (second, first)):
                if one in found:
                    found.setdefault(other, (found[one][0], f"as for {one}"))
        missing = [index for index in names if index not in found]
        shorter = {
            index: index.rstrip("'") + "'" * count
            for index in missing
            for count in range(index.count("'"))
            if index.rstrip("'") + "'" * count in found
        }
        if not shorter:
            break
        for index, fewer in shorter.items():
            found[index] = (found[fewer][0], f"as for {fewer}")
    for first, second, delta in pairs:
        if first in found and second in found and found[first][0] != found[second][0]:
            (known, why), (size, _) = found[first], found[second]
            message = f"index {second} of the delta: expected {known}, that of {first}, {why}"
            raise notation_error(f"{message}; got {size}", source, delta.span)


def _equal(node: Expression) -> list[tuple[str, str, Expression]]:
    """The pairs of indices of one range: those of a delta, those of a softmax."""
    own: list[tuple[str, str, Expression]] = []
    if isinstance(node, Delta):
        own = [(node.first, node.second, node)]
    elif isinstance(node, Softmax):
        own = [(node.index, node.bound, node)]
    return own + [pair for child in children(node) for pair in _equal(child)]


def _where(index: str, sides: Iterable[Expression]) -> Span:
    for leaf in (leaf for side in sides for leaf in leaves(side)):
        if index in all_indices(leaf):
            return leaf.span
    return None


def _whole_number(value: Any, name: str, source: str, span: Span = None) -> int:
    """Return a Python integer; raise ``ValueError`` for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        message = f"{name}: expected a Python integer, known before the arrays are; got {value!r}"
        raise notation_error(message, source, span) from None


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
        return _whole_number(scalars[name], name, source, leaf.span)

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
