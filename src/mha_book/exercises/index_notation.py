"""Checks of the exercises of the chapter on index notation."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise
from mha_book.notation import Equation


def _draw(equation: Equation, **sizes: int) -> dict[str, Any]:
    """Arrays for an equation, from small whole numbers."""
    rng = np.random.default_rng(7)
    shapes = equation.shapes(**sizes)
    return {
        name: jnp.asarray(rng.integers(-4, 5, shapes[name]), jnp.float32)
        for name in equation.operands
    }


def _compare(text: Any, wanted: str, **sizes: int) -> str | None:
    """Run the reader's LaTeX beside ours."""
    if not isinstance(text, str):
        return f"expected LaTeX as a string; got {text!r}"
    own, want = Equation(text), Equation(wanted)
    if own.target is None or own.left != want.left:
        return f"expected the left side of {want.latex}; got that of {own.latex}"
    if missing := set(want.operands) - set(own.operands):
        return f"{own.latex} does not use {', '.join(sorted(missing))}"
    if extra := set(own.operands) - set(want.operands):
        return f"{own.latex} uses {', '.join(sorted(extra))}, which is not given"
    arrays = _draw(want, **sizes)
    scalars = {name: 2.0 for name, leaf in want.operands.items() if not leaf.indices}
    got = own(**{**arrays, **scalars})
    if not jnp.allclose(got, want(**{**arrays, **scalars}), atol=1e-4):
        return f"{own.latex} runs and gives other numbers"
    return None


@exercise("read")
def _read(attempt: Attempt) -> Iterator[str | None]:
    got = attempt()
    if not isinstance(got, str) or "->" not in got:
        yield f"expected a string such as 'ij,j->i'; got {got!r}"
    terms, _, result = got.replace(" ", "").partition("->")
    if terms != "hba,hBa":
        yield f"the factors are W_Q with h, b, a and W_K with h, b', a; got {terms!r}"
    if set(result) == set("hbBa"):
        yield "a stands on the right alone: it is summed, and the result has no axis for it"
    if set(result) != set("hbB"):
        yield f"the result has the indices of the left side; got {result!r}"
    yield None if result == "hbB" else f"the axes are right, their order is not; got {result!r}"


@exercise("write")
def _write(attempt: Attempt) -> Iterator[str | None]:
    yield _compare(attempt(), r"\bar A^{ij} = \frac{1}{N} A^{hij}", h=2, i=3, j=5)


@exercise("gradient")
def _gradient(attempt: Attempt) -> Iterator[str | None]:
    got = attempt()
    if not isinstance(got, tuple | list) or len(got) != 2:
        yield f"expected two equations, for the projection and for the keys; got {got!r}"
    query = Equation(r"\Gamma^{hbb'} = W_Q^{hba} W_K^{hb'a}").gradient("W_Q").latex
    keys = Equation(r"S^{kgij} = \frac{1}{\sqrt{d_k}} Q^{kgia} K^{kja}").gradient("K").latex
    found = _compare(got[0], query, h=2, b=3, b_prime=5, a=7)
    yield found or _compare(got[1], keys, k=2, g=3, i=5, j=7, a=11)


@exercise("linear")
def _linear(attempt: Attempt) -> Iterator[str | None]:
    got = attempt()
    heads, length, width = 8, 4096, 64
    want = 2 * 2 * heads * length * width * width
    if got == 2 * 2 * heads * length * length * width:
        yield "that is the order that makes scores; which other two factors share an index?"
    if isinstance(got, int | float) and 2 * got == want:
        yield "a multiplication and its addition are two operations"
    if not isinstance(got, int | float) or got != want:
        yield f"expected the flops of the equation with these sizes; got {got!r}"
