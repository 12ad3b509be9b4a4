r"""A system with some of its lines changed, and what one step of writing costs by its equations.

A variant of a layer is the layer with a line or two changed. What it keeps of a position, and what
it computes for a new token, follows from where the indices of queries and keys stand.
"""

import re
from math import prod

from mha_book.notation.equation import parse_equations
from mha_book.notation.expression import Named, key
from mha_book.notation.system import System

__all__ = ["change", "kept", "step_flops"]

_UPPER = re.compile(r"\^\{([^{}]*)\}")


def change(system: System, latex: str, *, split: tuple[str, str] | None = None) -> System:
    r"""Return a system with other lines: a line takes the place of the one that defines its name.

    Lines that define something new are added, and those that the outputs need no more are left out.

    Args:
        system: the system to begin with.
        latex: the new lines.
        split: an index of the system, and the indices that take its place: ``("h", "kg")`` numbers
            the heads by pairs. The new lines are written with these already.

    Returns:
        The changed system.

    Raises:
        ValueError: the lines cannot be read, or they make no system with the others.

    Example:
        >>> system = System.parse(r"y^j = W^{ij} x^i \\ z^j = \tanh(y^j)")
        >>> change(system, r"z^j = \sin(x^j)").inputs
        ('x',)
    """
    found = {}
    for name, equation in zip(system.names, system.equations, strict=True):
        found[name] = equation.latex if split is None else _split(equation.latex, *split)
    for equation in parse_equations(latex):
        assert isinstance(equation.left, Named)
        found[key(equation.left.name)] = equation.latex
    whole = System(found.values(), loss=system.loss)
    return System(whole.needed(system.outputs), loss=system.loss)


def _split(latex: str, old: str, new: str) -> str:
    """Return the text with other letters for an index, wherever it stands above a name."""
    return _UPPER.sub(lambda match: f"^{{{match[1].replace(old, new)}}}", latex)


def kept(system: System, *, query: str = "i", position: str = "j", **dims: int) -> dict[str, int]:
    r"""Count the numbers that have to be kept of one position, by the names of the tensors.

    Kept is what is computed of a position alone and read by an equation of the queries: a tensor
    with the index of positions, without that of queries.

    Args:
        system: the layer.
        query: the index of the queries.
        position: the index of the positions that are attended to.
        **dims: the size of each other index of these tensors.

    Returns:
        Name to count.

    Raises:
        ValueError: a size is missing.

    Example:
        >>> from mha_book.notation.layer import multi_head_layer
        >>> kept(multi_head_layer(), h=2, a=3, c=5)
        {'K': 6, 'V': 10}
    """
    found: dict[str, int] = {}
    for equation in system.equations:
        assert isinstance(equation.left, Named)
        if query not in equation.left.indices:
            continue
        for name, leaf in equation.operands.items():
            axes = [index for index in leaf.indices if isinstance(index, str)]
            if name in system.names and position in axes and query not in axes:
                rest = [index for index in axes if index != position]
                if missing := [index for index in rest if index.rstrip("'") not in dims]:
                    raise ValueError(
                        f"{name}: expected the size of each index, got none of {missing}"
                    )
                found[name] = prod(dims[index.rstrip("'")] for index in rest)
    return found


def step_flops(
    system: System, positions: int, *, query: str = "i", position: str = "j", **dims: int
) -> dict[str, int]:
    r"""Count the operations that one new token takes, by the name of what is computed.

    There is one query. What is made of a position alone is made for the new one; what a query makes
    of the positions, it makes of all.

    Args:
        system: the layer.
        positions: how many positions are attended to.
        query: the index of the queries.
        position: the index of the positions.
        **dims: the size of each other index.

    Returns:
        Name to count, each as :meth:`~mha_book.notation.system.System.flops` counts.

    Example:
        >>> from mha_book.notation.layer import multi_head_layer
        >>> step_flops(multi_head_layer(), 7, h=2, a=3, b=4, c=5, d=4)["O"]
        140
    """
    found = {}
    for name, equation in zip(system.names, system.equations, strict=True):
        assert isinstance(equation.left, Named)
        count = positions if query in equation.left.indices else 1
        sizes = {**dims, query: 1, position: count}
        found[name] = System([equation]).flops(**sizes)[name]
    return found
