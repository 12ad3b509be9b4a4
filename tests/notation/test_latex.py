"""Expressions as LaTeX: what is written reads the same, and is bound the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_book.notation.expression import (
    Add,
    Affine,
    Delta,
    Derivative,
    Function,
    Number,
    Power,
    Product,
    Quotient,
    Softmax,
    Sum,
    Tensor,
    free_indices,
    rename,
)
from mha_book.notation.latex import render, render_equation
from mha_book.notation.parser import Statement, parse
from mha_book.notation.rules import bind
from tests.notation.helpers import bound, examples
from tests.notation.notes import BOOK, PARSED, REJECTED
from tests.notation.test_rules import PLACED


def every_statement():
    rows = [row[0] for row in PARSED.values()] + list(BOOK.values())
    rows += [row[2][0] for row in REJECTED.values() if row[2]] + [row[0] for row in PLACED]
    return [statement for latex in rows for statement in parse(latex)]


@pytest.mark.usefixtures("no_type_checks")
def test_a_bound_equation_is_rendered_and_read_the_same():
    for statement in every_statement():
        result = bind(statement)
        latex = render_equation(result.sides)
        assert bound(latex, broadcast=result.free) == result
        assert bound(render_equation(bound(latex).sides)) == result


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


LETTERS = st.sampled_from("abchijkm")
INDEX = st.builds(
    lambda letter, primes: letter + "'" * primes,
    LETTERS | st.sampled_from([r"\alpha", r"\beta"]),
    st.integers(0, 2),
)
FACTOR = st.sampled_from(["H", "d_k", r"N_{\text{kv}}", 1, 2, -1, -3, 12])
AFFINE = st.builds(
    lambda indices, factors, offset: (
        Affine,
        tuple(zip(factors, indices, strict=False)),
        offset if len(indices) > 1 else 7,
    ),
    st.lists(INDEX, min_size=1, max_size=3, unique=True),
    st.lists(FACTOR, min_size=3, max_size=3),
    st.sampled_from([0, 1, -4, "T", "d_k"]),
)
NAME = st.builds(
    lambda base, subscript, primes: base + subscript + primes,
    st.sampled_from(["A", "x", r"\lambda", r"\Omega", r"\widetilde{X}", r"\text{score}"]),
    st.sampled_from(["", "_Q", "_{ab}", r"_\alpha", r"_{\text{kv}}", "_0"]),
    st.sampled_from(["", "'", "''"]),
)
TENSOR = st.tuples(st.just(Tensor), NAME, st.lists(INDEX | AFFINE, max_size=3).map(tuple))
NUMBER = st.tuples(st.just(Number), st.fractions(-20, 20, max_denominator=9))
DELTA = st.tuples(st.just(Delta), INDEX, INDEX)
LEAF = TENSOR | NUMBER | DELTA | st.tuples(st.just(Derivative), TENSOR, TENSOR)


@st.composite
def expressions(draw, depth: int = 3):
    """Plans of expressions: a class and what it is called with (see ``build``)."""
    kinds = (Tensor, Product, Add, Quotient, Power, Function, Sum)
    kind = draw(st.sampled_from(kinds)) if depth else Tensor
    inner = expressions(depth - 1)
    if kind is Tensor:
        return draw(LEAF)
    if kind in (Product, Add):
        return kind, tuple(draw(st.lists(inner, min_size=2, max_size=3)))
    if kind is Quotient:
        return kind, draw(inner), draw(inner.filter(lambda plan: plan[0] is not Number))
    if kind is Power:
        return kind, draw(inner), draw(st.fractions(-5, 5, max_denominator=4))
    if kind is Function:
        return (
            kind,
            draw(st.sampled_from(["exp", "log", "sqrt", "tanh", "sin", "cos"])),
            draw(inner),
        )
    indices = draw(st.lists(INDEX, min_size=1, max_size=2, unique=True))
    return kind, tuple(indices), draw(inner), True


def build(plan):
    """The expression of a plan; the types are checked here, outside of the drawing."""
    if not isinstance(plan, tuple):
        return plan
    if plan and isinstance(plan[0], type):
        return plan[0](*map(build, plan[1:]))
    return tuple(map(build, plan))


@examples(40, 1000)
@pytest.mark.usefixtures("no_type_checks")
def test_what_is_rendered_reads_the_same(count):
    @settings(max_examples=count)
    @given(st.lists(expressions(), min_size=2, max_size=3))
    def check(plans):
        sides = tuple(map(build, plans))
        latex = " = ".join(map(render, sides))
        assert parse(latex) == (Statement(sides),)
        assert " = ".join(map(render, parse(latex)[0].sides)) == latex

    check()
