"""Run displayed equations from the text of their page, for ``test_executed_equations.py``.

``tests/book/equations/__init__.py`` says how a chapter registers one.
"""

import copy
import functools
import re
from collections.abc import Iterator

import jax
import numpy as np

from mha_book.notation import Equation, System, parse_equations, run_loops
from mha_book.notation.expression import Expression, key
from mha_book.notation.system import replace_equations
from tests.book.equations import Executed, evaluated
from tests.book.extensions import ROOT
from tests.book.test_equations import page_equations

__all__ = ["alterations", "compare", "problems", "run"]

Pair = tuple[str, np.ndarray, np.ndarray]


_GROUP = re.compile(r"\^\{([a-z'\s]+)\}")


def alterations(latex: str) -> Iterator[tuple[str, str]]:
    """Yield (what was altered, the altered text): signs, indices, functions, one at a time."""
    for match in re.finditer(r"[+-]", latex):
        other = {"+": "-", "-": "+"}[match[0]]
        yield f"sign at {match.start()}", latex[: match.start()] + other + latex[match.end() :]
    for match in _GROUP.finditer(latex):
        if latex[: match.start()].endswith("\\delta"):
            continue  # symmetric
        letters = re.findall(r"[a-z]'*", match[1])
        for place in range(len(letters) - 1):
            swapped = [*letters]
            swapped[place : place + 2] = swapped[place + 1], swapped[place]
            if swapped == letters:
                continue
            new = f"^{{{''.join(swapped)}}}"
            what = f"{match[0]} becomes {new} at {match.start()}"
            yield what, latex[: match.start()] + new + latex[match.end() :]
    for old, new in (("\\exp", "\\tanh"), ("\\log", "\\tanh"), ("\\sqrt", "")):
        for match in re.finditer(re.escape(old), latex):
            what = f"{old} at {match.start()}"
            yield what, latex[: match.start()] + new + latex[match.end() :]


def run(latex: str, registered: Executed, by_loops: bool = False) -> list[Pair]:
    """Return (what is compared, one value, the other) for every statement of an equation.

    Statements that give a name a value are run as soon as their operands are there, and the
    package's value, where there is one, is what the following statements go on with. Where loops
    alone run them, nothing is compiled.

    Raises:
        ValueError: the text does not parse, does not fit the arrays, or lacks an operand.
    """
    given, expected = _given(registered)
    dims = given.get("dims")  # sizes that no array determines
    arrays = {name: _double(value) for name, value in given.items() if name != "dims"}
    waiting = list(parse_equations(_whole(latex, registered), broadcast=registered.broadcast))
    pairs: list[Pair] = []
    names = {key(equation.left.name) for equation in waiting if _assigns(equation)}
    if unknown := set(expected) - names:
        raise ValueError(f"expected: the text gives no value to {', '.join(sorted(unknown))}")
    while waiting:
        ready = [equation for equation in waiting if not _lacking(equation, arrays)]
        if not ready:
            lacking = _lacking(waiting[0], arrays)
            raise ValueError(f"no array for {', '.join(sorted(lacking))}")
        equation = ready[0]
        waiting.remove(equation)
        left = key(equation.left.name) if _assigns(equation) else None
        own = {name: arrays[name] for name in {*equation.operands, *equation.scalars}}
        loops = run_loops(equation, own, dims=dims)
        if by_loops:
            sides = (_computing(equation, side) for side in equation.right_sides[1:])
            assigned = first = loops
            others = [run_loops(side, own, dims=dims) for side in sides]
        else:
            assigned = np.asarray(equation(own, dims=dims))
            first, *others = map(np.asarray, equation.values(own, dims=dims))
        pairs.append((f"{left or 'identity'}: loops", assigned, loops))
        for value in others:
            pairs.append((f"{left or 'identity'}: sides", first, value))
        if left is not None:
            if left in expected:
                given = np.asarray(expected[left], np.float64)
                pairs.append((f"{left}: the package's", assigned, given))
                arrays[left] = given
            else:
                arrays[left] = assigned
    return pairs


def _computing(equation: Equation, side: Expression) -> Equation:
    """The equation, of which this side is what its loops compute."""
    other = copy.copy(equation)
    other.computed = side
    return other


def _whole(latex: str, registered: Executed) -> str:
    """The lines of an equation that changes others, with those that it leaves as they are."""
    if not registered.within:
        return latex
    shown = _shown()
    system = System.parse(shown[registered.within[0]])
    for label in registered.within[1:]:
        system = replace_equations(system, shown[label])
    return replace_equations(system, latex, split=registered.split).latex


@functools.cache
def _shown() -> dict[str | None, str]:
    return {label: latex for page in page_equations(ROOT).values() for label, latex in page}


@functools.cache
def _given(registered: Executed):
    """The arrays of an equation and the package's values: once, however often it is altered."""
    return evaluated(registered.arrays)


def _lacking(equation: Equation, arrays) -> set[str]:
    return {*equation.operands, *equation.scalars} - set(arrays)


def _assigns(equation: Equation) -> bool:
    return equation.target is not None


def _double(value):
    return np.asarray(value, np.float64) if np.ndim(value) else value


def problems(pairs: list[Pair], tolerance: float) -> list[str]:
    """Return which of the compared values differ."""
    found = []
    for what, one, other in pairs:
        if one.shape != other.shape:
            found.append(f"{what}: {one.shape} against {other.shape}")
        elif not (np.isfinite(one).all() and np.isfinite(other).all()):
            found.append(f"{what}: not finite")
        elif (gap := np.abs(one - other).max() / max(1.0, np.abs(other).max())) > tolerance:
            found.append(f"{what}: {gap:.2g} apart")
    return found


def compare(latex: str, registered: Executed, by_loops: bool = False) -> list[str]:
    """Return what is wrong with an equation, in float64; nothing if it holds."""
    with jax.enable_x64(True):
        pairs = run(latex, registered, by_loops)
    if not any("loops" not in what for what, _, _ in pairs):
        return [f"{registered.label}: nothing but its own loops to compare it with"]
    return problems(pairs, registered.tolerance)
