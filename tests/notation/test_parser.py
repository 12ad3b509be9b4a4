"""LaTeX to expressions and back: what parses, what is refused and where the caret stands."""

from fractions import Fraction

import pytest

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
    Sum,
    Tensor,
)
from mha_book.notation.latex import render
from mha_book.notation.parser import parse
from mha_book.notation.rules import bind
from tests.notation.helpers import marked, refused

A = Tensor("A", ("i", "j"))
x, y = Tensor("x"), Tensor("y")
ONE = Number(Fraction(1))


def number(value) -> Number:
    return Number(Fraction(value))


def right(latex: str):
    """The right side of an equation."""
    (statement,) = parse(f"z = {latex}")
    return statement.sides[1]


READ = {
    r"A^{ij}": A,
    r"A^{i j}": A,
    r"A^{i,j}": A,
    r"X'^{hia}": Tensor("X'", ("h", "i", "a")),
    r"W_Q^{h'b'a''}": Tensor("W_Q", ("h'", "b'", "a''")),
    r"W^{hba}_Q": Tensor("W_Q", ("h", "b", "a")),
    r"\widetilde X^i": Tensor(r"\widetilde{X}", ("i",)),
    r"\text{score}_{ij}": Tensor(r"\text{score}_{ij}"),
    r"Y_\text{concat}": Tensor(r"Y_{\text{concat}}"),
    r"x_{\alpha b}": Tensor(r"x_{\alpha b}"),
    r"\lambda^\alpha": Tensor(r"\lambda", (r"\alpha",)),
    r"X^{i(hH+a)}": Tensor("X", ("i", Affine((("H", "h"), (1, "a"))))),
    r"X^{i(hd_k+a-1)}": Tensor("X", ("i", Affine((("d_k", "h"), (1, "a")), -1))),
    r"X^{(2i-j+T)}": Tensor("X", (Affine(((2, "i"), (-1, "j")), "T"),)),
    r"A^{i,\,i+k}": Tensor("A", ("i", Affine(((1, "i"), (1, "k"))))),
    r"A^{i-1,j}": Tensor("A", (Affine(((1, "i"),), -1), "j")),
    "0.25": number("1/4"),
    r"\frac12": number("1/2"),
    "1/2": number("1/2"),
    r"\sigma_a^4": Power(Tensor(r"\sigma_a"), Fraction(4)),
    r"x^{-1}": Power(x, Fraction(-1)),
    r"\left(A^{ij}\right)^2": Power(A, Fraction(2)),
    r"A^{ij} x": Product((A, x)),
    r"A^{ij} \cdot x \times y": Product((A, x, y)),
    r"x (x + y)": Product((x, Add((x, y)))),
    r"\Big[ x - y \Big]": Add((x, Product((number(-1), y)))),
    r"x - 2 y - 1": Add((x, Product((number(-2), y)), number(-1))),
    r"(x y) A^{ij}": Product((Product((x, y)), A)),
    r"x / y": Quotient(x, y),
    r"x y / 2": Quotient(Product((x, y)), number(2)),
    r"\frac{1}{\sqrt{d_k}}": Quotient(ONE, Function("sqrt", Tensor("d_k"))),
    r"\sqrt x y": Product((Function("sqrt", x), y)),
    r"\ln(x) y": Product((Function("log", x), y)),
    r"x \log \frac{x}{y}": Product((x, Function("log", Quotient(x, y)))),
    r"x \sum_{i,j} A^{ij}": Product((x, Sum(("i", "j"), A, True))),
    r"\sum_{j'} x^{j'}": Sum(("j'",), Tensor("x", ("j'",)), True),
    r"\sum_{j=1}^{d_k} A^{ij}": Sum(("j",), A, True),
    r"\delta^{ij}": Delta("i", "j"),
    r"\delta^{h'}_h": Delta("h'", "h"),
    r"\delta_i^j": Delta("i", "j"),
    r"\frac{\partial L}{\partial A^{ij}}": Derivative(Tensor("L"), A),
}


@pytest.mark.parametrize("latex", READ)
def test_read(latex):
    assert right(latex) == READ[latex]
    assert right(render(READ[latex])) == READ[latex]


# (LaTeX, what the caret marks, the reason)
REFUSED = [
    ("x", "", "expected '=', found the end"),
    ("x = (y", "", r"expected an operator, a factor or '\)', found the end"),
    ("x = {y}", "{", "braces do not show on the page"),
    (r"x = \foo y", r"\foo", r"the command \\foo is unknown"),
    ("x = A^T", "T", "there is no transpose: write the indices in the other order"),
    ("x = A^{iJ}", "J", "indices are lower-case letters"),
    ("x = A^{(h)}", "(h)", "a head in parentheses leaves the axis of the features unnamed"),
    ("x = A^{i+j}", "+", "in parentheses or between commas"),
    ("x = A^{(ij+a)}", "j", "no product of indices"),
    ("x = A^{(i+i)}", "i", "stands twice"),
    ("x = A^i^j", "^", "one group of each kind"),
    ("x = A^i'", "'", "primes stand before indices"),
    ("x = (y)^i", "^i", "indices belong to names"),
    (r"x = \frac{y}{z}^2", "^", "bracket a fraction"),
    (r"x = \exp A^{ij} B^{jc}", r"\exp", "ambiguous: what does .* reach"),
    ("x = a / b c", "/", "ambiguous: what does '/' reach"),
    ("x = " + "1" * 31, "1" * 31, "at most 30 digits"),
    (r"x = \frac{\partial L}{\partial y^2}", "y^2", "without powers"),
    (r"x = \sum y", "y", "a sum names its index"),
    (r"x = \sum_{j=2}^T A^{ij}", "2", "from 0 or from 1"),
    (r"x = \sum_{j}^T A^{ij}", "^", "a lower bound"),
    (r"x = \operatorname{softmax}(A^{ij})", r"\operatorname{softmax}", "quotient of exponentials"),
    (r"x = \begin{cases} y \end{cases}", r"\begin{cases}", "cases are no part"),
    (r"\begin{aligned} x = y", r"\begin{aligned}", "is not ended"),
    (r"j \le i", r"\le", "no order or membership"),
]


@pytest.mark.parametrize("latex, place, reason", REFUSED)
def test_refused_with_a_caret_at_the_place(latex, place, reason):
    refused(parse, latex, place, reason)


def test_error_shows_the_line_and_cuts_a_long_one():
    latex = "a = b \\\\\nc = " + "d + " * 60 + r"\foo" + " + e" * 60
    with pytest.raises(ValueError, match="unknown") as caught:
        parse(latex)
    assert marked(caught.value) == r"\foo"
    assert max(map(len, str(caught.value).splitlines())) <= 110


def test_statements_are_divided():
    latex = r"""
    \begin{aligned}
    a &= b, \\[1ex]
    c &= d \\
      &= e \qquad f = g.
    \end{aligned}
    """
    names = [[side.name for side in statement.sides] for statement in parse(latex)]
    assert names == [["a", "b"], ["c", "d", "e"], ["f", "g"]]
    spans = [latex[slice(*statement.span)].split()[0] for statement in parse(latex)]
    assert spans == ["a", "c", "f"]


def read_or_refuse(latex: str) -> None:
    caught = None
    try:
        for statement in parse(latex):
            bind(statement)
            bind(statement, strict=True)
    except ValueError as error:
        caught = error
    if caught:
        assert type(caught) is ValueError
        marked(caught)


NESTED = {
    "(": ")", r"\frac{1}{": "}", r"\sqrt{": "}", r"\sum_j ": "", "x^{i(": ")}",
    r"\begin{aligned}": "", "-": "",
}  # fmt: skip


@pytest.mark.parametrize("opening", ["(", r"\frac{1}{", r"\sqrt{", r"\exp(", r"\sum_j (A^{ij} + "])
def test_nesting_to_the_bound_is_read_bound_and_written(opening):
    closing = NESTED.get(opening, ")")
    latex = "x = " + opening * 9 + "y" + closing * 9
    (statement,) = parse(latex)
    assert parse(" = ".join(map(render, statement.sides))) == (statement,)
    read_or_refuse(latex)
    with pytest.raises(ValueError, match="at most 20 levels") as caught:
        parse("x = " + opening * 21 + "y" + closing * 21)
    marked(caught.value)
