"""Contractions: taken apart by hand, in the cheapest order, against NumPy's einsum."""

import jax
import numpy as np
import pytest

from mha_book.notation import Equation
from mha_book.notation.evaluate import order
from mha_book.notation.expression import Tensor

A, V = Tensor("A", ("i", "j")), Tensor("v", ("k",))


@pytest.mark.optimized
def test_sums_over_many_short_rows_are_those_of_numpy() -> None:
    """Where the long axis stood last, single entries were off by as much as themselves."""
    rng = np.random.default_rng(0)
    weight, rows = (rng.normal(size=shape) for shape in ((3, 3), (40_000, 3)))
    squares = (rows @ weight.T) ** 2
    for left, sums, expected in (("L", "ia", squares.sum()), ("P^i", "a", squares.sum(1)),
                                 ("V^a", "i", squares.sum(0))):  # fmt: skip
        equation = Equation(rf"{left} = \sum_{{{sums}}} (\sum_b W^{{ab}} X^{{ib}})^2")
        got = jax.jit(equation)({"W": weight.astype(np.float32), "X": rows.astype(np.float32)})
        np.testing.assert_allclose(got, expected, rtol=1e-4)


@pytest.mark.parametrize(
    "terms, output, sizes, expected",
    [
        (["ij", "jb", "b"], "i", [3, 5, 11], [((1, 2), "j", "b"), ((0, 3), "i", "j")]),
        # What one tensor alone has is summed first.
        (["ij", "ib"], "b", [3, 5, 11], [((0,), "i", "j"), ((2, 1), "b", "i")]),
        # The cheapest order goes through an array of 385 elements; no array here has above 77.
        (
            ["ac", "bc", "ab", "b"],
            "ac",
            [7, 11, 5],
            [((1, 3), "bc", ""), ((2, 4), "ac", "b"), ((0, 5), "ac", "")],
        ),
        # No pair shares an index that may go: every order has a larger result.
        (["ab", "bc", "ca"], "", [5, 5, 5], [((0, 1), "ac", "b"), ((2, 3), "", "ca")]),
    ],
)
def test_the_order_is_the_cheapest_without_large_results(
    terms: list[str], output: str, sizes: list[int], expected: object
) -> None:
    letters = dict.fromkeys("".join(terms))
    found = order([tuple(t) for t in terms], tuple(output), dict(zip(letters, sizes, strict=True)))
    assert [(s.operands, "".join(s.result), "".join(s.summed)) for s in found] == expected


def test_scalars_go_into_the_smallest_tensor() -> None:
    # The result has 4 elements, the operands 40 each.
    equation = Equation(r"S^{ij} = c Q^{ia} K^{ja}")
    given = np.ones((2, 20)), np.ones((2, 20))
    text = str(jax.make_jaxpr(lambda q, k: equation(Q=q, K=k, c=2.0))(*given))
    (scaled,) = (line for line in text.splitlines() if " mul " in line)
    assert "f32[2,2]" in scaled
