"""The loops of equations: the source that readers see, and what it computes."""

import math
from typing import Any

import numpy as np

from mha_book.notation import Equation, run_loops


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
