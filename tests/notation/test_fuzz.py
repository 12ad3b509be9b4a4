"""Strings that nobody meant: an answer or an error at a place, never anything else."""

import random

import jax
import numpy as np
import pytest

from mha_book.notation import Equation, parse_equations, run_loops
from mha_book.notation.expression import all_indices, key
from mha_book.notation.latex import render
from mha_book.notation.parser import parse
from tests.notation.helpers import examples, marked

pytestmark = pytest.mark.usefixtures("no_type_checks")


def read(source: str) -> tuple[Equation, ...]:
    """The equations of a string, each written in all its forms; none if it is refused."""
    try:
        equations = parse_equations(source)
    except ValueError as error:
        marked(error)
        return ()
    for equation in equations:
        compile(equation.loops(), "<loops>", "exec")
        assert Equation(equation.latex, broadcast=equation.broadcast) == equation
        assert equation._repr_markdown_().startswith("$$")
        (statement,) = parse(equation.latex)
        assert parse(" = ".join(map(render, statement.sides))) == (statement,)
    return equations


def grown(draw: random.Random, free: str, depth: int = 3) -> str:
    """Terms by the grammar, most of them well formed, whose free indices are among those given."""
    terms = [_factors(draw, free, depth) for _ in range(draw.choice((1, 1, 2)))]
    return draw.choice((" + ", " - ")).join(terms)


def _factors(draw: random.Random, free: str, depth: int) -> str:
    factors = [_factor(draw, free, depth) for _ in range(draw.choice((1, 1, 2, 3)))]
    return " ".join([*factors, *(rf"u^{index}" for index in free)])


def _factor(draw: random.Random, free: str, depth: int) -> str:
    indices = "".join(draw.choices("ijk" + free, k=draw.randint(1, 3)))
    inner = grown(draw, free, depth - 1) if depth else "2"
    new = draw.choice("ab")
    return draw.choice(
        [f"T_{len(indices)}^{{{indices}}}"] * (1 if depth else 12)
        + [f"({inner})" + draw.choice(("", "^2", "^{-1}", "^{1/2}")), rf"\frac{{{inner}}}{{3 s}}"]
        + [rf"\tanh({inner})", rf"\exp({inner})", rf"(\sum_{new} v^{new} {inner})"]
        + [r"\delta^{ij}", "K^{(2i+j)}", r"\sqrt{2}", r"s \cdot 3.5"]
    )


@examples(60, 1000)
def test_what_is_read_computes_what_its_loops_do(count: int) -> None:
    draw, verdicts = random.Random(3), []
    while len(verdicts) < count:
        free = draw.choice(("", "i", "ij"))
        left = f"y^{{{free}}}" if free else "y"
        verdicts += [computed(equation) for equation in read(f"{left} = {grown(draw, free)}")]
    assert verdicts.count("computed") >= count / 3


def computed(equation: Equation) -> str:
    """Compute an equation on small arrays, and by loops: both the same, or both refuse."""
    sizes = {key(i): 2 for side in equation.sides for i in all_indices(side)}
    shapes = equation.shapes(**sizes, **({"s": 1} if "s" in equation.operands else {}))
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(0.5, 1.5, shapes[name]) for name in equation.operands}
    with jax.enable_x64(True), np.errstate(all="ignore"):  # nearly equal numbers are subtracted
        value = np.asarray(equation(arrays, dims=sizes))
        try:
            wanted = run_loops(equation, arrays, dims=sizes)
        except (ArithmeticError, ValueError):
            # Python raises where arrays become infinite or NaN, perhaps only on the way (1 / inf)
            # or where a delta is zero: an array in its place leaves nothing out.
            plain = Equation(equation.latex.replace(r"\delta", "I"), broadcast=equation.broadcast)
            everything = {**arrays, "I": np.eye(2)} if "I" in plain.operands else arrays
            infinite = pytest.raises(FloatingPointError)
            with jax.debug_nans(True), jax.debug_infs(True), infinite:
                plain(everything, dims=sizes)
            return "not finite"
    assert value.shape == wanted.shape
    scale = abs(wanted).max(initial=0)
    if not scale < 1e6:
        return "large"
    np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6 * max(1.0, scale))
    return "computed"


@pytest.mark.parametrize("power", ["2^{99999999999}", "(x)^{1001}", "9^{-99999999999999}"])
def test_a_power_of_many_digits_is_refused(power: str) -> None:
    """It hung: Python's integers grow without end."""
    with pytest.raises(ValueError, match="expected a power of at most 1000"):
        Equation(f"y = {power}")
