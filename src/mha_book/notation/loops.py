r"""From an equation to loops: Python that computes every element by itself.

The source has one ``for`` for each index and nothing of NumPy but the array that it fills: what
an equation says, spelled out. It is slow, and what everything faster is compared with.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mha_book.notation.dimensions import Named, operands
from mha_book.notation.expression import Expression, Index, Tensor, key
from mha_book.notation.statements import Writer, name_of

if TYPE_CHECKING:
    from mha_book.notation.equation import Equation

__all__ = ["loops", "run_loops"]


def _extent(writer: Writer, index: Index) -> str:
    """Write the size of an axis of the result, for a computed position the least that it needs."""
    if isinstance(index, str):
        return writer.size(index)
    offset = [] if index.offset == 0 else [name_of(index.offset)]
    terms = [f"{name_of(k)} * ({writer.size(i)} - 1)" for k, i in index.terms if k != 1]
    last = [writer.size(i) for k, i in index.terms if k == 1]
    ones = [str(1 - len(last))] if len(last) != 1 else []
    return " + ".join([*terms, *last, *ones, *offset])


def _measure(writer: Writer, leaves: Mapping[str, Named]) -> tuple[list[str], list[str]]:
    """Write where the sizes of loops come from; return that, and the indices no array has."""
    missing = [index for index in writer.sizes if index in writer.measured]
    lines = []
    for name, leaf in leaves.items():
        found = [index for index in missing if index in leaf.indices]
        if found:
            names = [writer.sizes[str(i)] if i in found else "_" for i in leaf.indices]
            lines.append(f"    {', '.join(names)}{',' * (len(names) == 1)} = {name}.shape")
            missing = [index for index in missing if index not in found]
    return lines, missing


def loops(
    side: Expression, left: Named | None, free: Sequence[str], title: str
) -> tuple[str, dict[str, str]]:
    """Write a function that computes one side of an equation.

    Args:
        side: what is computed.
        left: the tensor that the equation defines, or None.
        free: the indices of the result, in the order of its axes, where there is no such tensor.
        title: what the comment above it says.

    Returns:
        The source, and for each index that no array has as an axis the argument that is its size.
    """
    leaves = operands([side])
    target = left if left is not None else Tensor("result", tuple(free))
    scalars = [name for name in operands([target]) if name != key(target.name)]
    arguments = list(dict.fromkeys([*leaves, *scalars]))
    function = f"compute_{key(target.name)}"
    writer = Writer([side, target], [*arguments, function])
    result = writer.free(key(target.name))
    if target.indices:
        shape = ", ".join(_extent(writer, index) for index in target.indices)
        writer.write(f"{result} = np.zeros(({shape}{',' * (len(target.indices) == 1)}))")
        for index in free:
            writer.loop(index)
        text, _ = writer.expression(side, frozenset(free))
        at = ", ".join(writer.position(index) for index in target.indices)
        writer.write(f"{result}[{at}] = {text}")
        writer.depth = 1
        writer.write(f"return {result}")
    else:
        text, _ = writer.expression(side, frozenset())
        writer.write(f"return {text}")
    lines, missing = _measure(writer, leaves)
    extra = {index: writer.sizes[index] for index in missing}
    head = f"def {function}({', '.join([*arguments, *extra.values()])}):"
    told = [f"# {line}" for line in title.splitlines()]
    return "\n".join([*told, head, *lines, *writer.lines, ""]), extra


def run_loops(
    equation: "Equation",
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
    return np.asarray(result)


def _float64(array: Any) -> Any:
    """A scalar as it came: one that is an integer may be a size."""
    found = np.asarray(array)
    return found.astype(np.float64) if found.ndim else found[()]
