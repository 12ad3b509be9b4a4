"""The loops of equations: the source that readers see, and what it computes."""

import math
from typing import Any

import numpy as np
import pytest

from mha_book.notation import Equation, run_loops

pytestmark = pytest.mark.unoptimized


def run(equation: Equation, **arrays: Any) -> Any:
    """Run the source as a reader would, who pastes it."""
    scope: dict[str, Any] = {"np": np, "math": math}
    exec(equation.loops(), scope)
    (name,) = (name for name in scope if name.startswith("compute_"))
    return scope[name](**arrays)


def test_the_source_of_a_projection() -> None:
    assert Equation(r"Q^{hia} = X^{ib} W_Q^{hba}").loops() == (
        "# Q^{hia} = X^{ib} W_Q^{hba}\n"
        "def compute_Q(X, W_Q):\n"
        "    size_i, size_b = X.shape\n"
        "    size_h, _, size_a = W_Q.shape\n"
        "    Q = np.zeros((size_h, size_i, size_a))\n"
        "    for h in range(size_h):\n"
        "        for i in range(size_i):\n"
        "            for a in range(size_a):\n"
        "                total = 0.0\n"
        "                for b in range(size_b):\n"
        "                    total += X[i, b] * W_Q[h, b, a]\n"
        "                Q[h, i, a] = total\n"
        "    return Q\n"
    )


@pytest.mark.parametrize(
    "latex, arrays, expected",
    [
        (r"y^i = -x^i z^i", {"x": [2.0], "z": [3.0]}, [-6.0]),
        (r"y^i = x^i - (z^i - w^i)", {"x": [2.0], "z": [3.0], "w": [5.0]}, [4.0]),
        (r"y^i = x^i - (-z^i)", {"x": [2.0], "z": [3.0]}, [5.0]),
        (r"y^i = \frac{x^i}{z^i w^i}", {"x": [2.0], "z": [4.0], "w": [5.0]}, [0.1]),
        (r"y^i = x^i \frac{z^i}{w^i + 1}", {"x": [2.0], "z": [3.0], "w": [5.0]}, [1.0]),
        (r"y^i = \frac{x^i}{\frac{z^i}{w^i}}", {"x": [2.0], "z": [4.0], "w": [5.0]}, [2.5]),
        (r"y^i = \frac12 \left(x^i + z^i\right)^2", {"x": [2.0], "z": [4.0]}, [18.0]),
        (r"y^i = \left(-x^i\right)^2", {"x": [2.0]}, [4.0]),
        (r"y^i = \left(x^i\right)^{-1/2}", {"x": [4.0]}, [0.5]),
        (r"y^i = \left(\left(x^i\right)^2\right)^3", {"x": [2.0]}, [64.0]),
        (r"y^i = \left(\frac{1}{3}\right)^2 x^i", {"x": [9.0]}, [1.0]),
        (r"y^i = 3 - 2 x^i", {"x": [2.0]}, [-1.0]),
        (r"y^i = \log \left(\sum_j \exp(A^{ij})\right)", {"A": [[0.0, 0.0]]}, [math.log(2)]),
        (r"t = x^i x^i", {"x": [3.0, 4.0]}, 25.0),
    ],
)
def test_brackets_where_python_needs_them(latex: str, arrays: Any, expected: Any) -> None:
    given = {name: np.asarray(value) for name, value in arrays.items()}
    np.testing.assert_allclose(run(Equation(latex), **given), expected, rtol=1e-12)
    np.testing.assert_allclose(Equation(latex)(**given), expected, rtol=1e-6)


def test_names_that_would_collide_are_told_apart() -> None:
    # An array that is called as an index, one as the sums are, and one as the result.
    equation = Equation(r"a^i = X^{ia} a^a + \text{total}^i")
    x, a, total = np.ones((2, 3)), np.arange(3.0), np.array([10.0, 20.0])
    np.testing.assert_allclose(run(equation, X=x, a=a, total=total), [13.0, 23.0])
    np.testing.assert_allclose(equation(X=x, a=a, total=total), [13.0, 23.0])


def test_sizes_that_no_array_has_are_arguments() -> None:
    equation = Equation(r"D^{ij} = \delta^{ij}")
    assert equation.loops().splitlines()[1] == "def compute_D(size_i, size_j):"
    np.testing.assert_array_equal(run(equation, size_i=3, size_j=3), np.eye(3))
    np.testing.assert_array_equal(run_loops(equation, dims={"i": 3}), np.eye(3))


def test_the_loops_are_in_float64() -> None:
    equation = Equation(r"y^i = \lambda x^i")
    value = run_loops(equation, {r"\lambda": 0.1, "x": np.ones(2, np.float32)})
    assert value.dtype == np.float64
    np.testing.assert_array_equal(value, [0.1, 0.1])
