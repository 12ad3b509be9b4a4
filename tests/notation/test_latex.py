"""Expressions as LaTeX: what is written reads the same, and is bound the same."""

import pytest

from mha_book.notation.expression import (
    Add,
    Delta,
    Function,
    Product,
    Softmax,
    Sum,
    Tensor,
    free_indices,
    rename,
)
from mha_book.notation.latex import render, render_equation
from tests.notation.helpers import bound
from tests.notation.test_rules import PLACED


@pytest.mark.usefixtures("no_type_checks")
def test_a_bound_equation_is_rendered_and_read_the_same():
    for latex, *_ in PLACED:
        result = bound(latex)
        assert bound(render_equation(result.sides), broadcast=result.free) == result


@pytest.mark.parametrize(
    "side, expected",
    [
        (Sum(("j",), Tensor("A", ("i", "j"))), "A^{ij}"),
        (Product((Tensor("x", ("i",)), Sum(("j",), Tensor("A", ("i", "j"))))),
         r"x^i \sum_{j} A^{ij}"),
        (Sum(("j",), Add((Tensor("A", ("i", "j")), Tensor("x", ("i",))))),
         r"\sum_{j} \left(A^{ij} + x^i\right)"),
        (Sum(("j",), Product((Tensor("A", ("i", "j")), Sum(("k",), Product(
            (Tensor("B", ("j", "k")), Tensor("x", ("k",)))))))),
         r"A^{ij} \left(B^{jk} x^k\right)"),
        (Function("exp", Sum(("j",), Tensor("A", ("i", "j")))), r"\exp \sum_{j} A^{ij}"),
        (Add((Sum(("j",), Tensor("A", ("i", "j")), True), Sum(("j",), Tensor("B", ("i", "j"))))),
         r"\sum_{j} A^{ij} + \sum_{j} B^{ij}"),
    ],
)  # fmt: skip
def test_sums_that_the_rules_would_move_are_written(side, expected):
    assert render_equation((Tensor("y", ("i",)), side)) == rf"y^i = {expected}"


def test_softmax_is_written_as_the_quotient_with_a_fresh_index():
    argument = Tensor("S", ("i", "j"))
    assert render(Softmax(argument, "j", "j'")) == (r"\frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}")
    renamed = rename(Softmax(argument, "j", "j'"), {"i": "j'"})
    assert free_indices(renamed) == ("j'", "j")
    assert bound(f"A^{{j'j}} = {render(renamed)}").sides[1] == renamed


def test_renaming_keeps_bound_indices_apart():
    inner = Sum(("j",), Product((Tensor("A", ("i", "j")), Delta("j", "k"))), True)
    renamed = rename(inner, {"i": "j", "k": "i"})
    assert free_indices(renamed) == ("j", "i")
    assert renamed == Sum(("j'",), Product((Tensor("A", ("j", "j'")), Delta("j'", "i"))), True)
