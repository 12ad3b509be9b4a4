"""The index rules: which sums are implied, where they reach, and what is refused."""

import pytest

from mha_book.notation.expression import (
    Add,
    Derivative,
    Function,
    Product,
    Quotient,
    Softmax,
    Sum,
    Tensor,
)
from mha_book.notation.latex import render
from tests.notation.helpers import bound, refused


def shown(node) -> str:
    """The expression with each sum in square brackets, an implied one with a dot."""
    match node:
        case Sum(indices, body, written):
            return f"[{'' if written else '.'}{''.join(indices)}: {shown(body)}]"
        case Product(factors):
            return " ".join(f"({shown(f)})" if isinstance(f, Add) else shown(f) for f in factors)
        case Add(terms):
            return " + ".join(map(shown, terms))
        case Quotient(upper, lower):
            return f"{{{shown(upper)} / {shown(lower)}}}"
        case Function(name, argument):
            return f"{name}({shown(argument)})"
        case Softmax(argument, index, other):
            return f"softmax_{index}_{other}({shown(argument)})"
    return render(node)


# (LaTeX, free indices, the last side)
PLACED = [
    (r"y^i = x^i", "i", "x^i"),
    (r"y^i = A^{ij} x^j", "i", "[.j: A^{ij} x^j]"),
    (r"y = A^{ii}", "", "[.i: A^{ii}]"),
    (r"y^i = A^{ij}", "i", "[.j: A^{ij}]"),
    (r"y^i = A^{ij} x^j + B^{ik}", "i", "[.j: A^{ij} x^j] + [.k: B^{ik}]"),
    (r"y^i = A^{ij} x^j + B^{ij} z^j", "i", "[.j: A^{ij} x^j] + [.j: B^{ij} z^j]"),
    (r"y^i = (A^{ij} + B^{ij}) x^j", "i", "[.j: (A^{ij} + B^{ij}) x^j]"),
    (r"y^i = 2 (A^{ij} x^j - z^i)", "i", "2 ([.j: A^{ij} x^j] + -1 z^i)"),
    (r"y^i = A^{ij} (B^{jk} x^k + z^j)", "i", "[.j: A^{ij} ([.k: B^{jk} x^k] + z^j)]"),
    (r"y^i = (A^{ij} x^j) (B^{ik} z^k)", "i", "[.j: A^{ij} x^j] [.k: B^{ik} z^k]"),
    (r"y^i = \frac{A^{ij} x^j}{n^i}", "i", "{[.j: A^{ij} x^j] / n^i}"),
    (r"y^i = \frac{A^{ij}}{n^j} x^j", "i", "[.j: {A^{ij} / n^j} x^j]"),
    (r"y^i = \exp\left(A^{ij}\right) x^j", "i", "[.j: exp(A^{ij}) x^j]"),
    (r"y^i = \sum_h A^{hij} x^j", "i", "[h: [.j: A^{hij} x^j]]"),
    (r"y^i = x^j \sum_h A^{hij}", "i", "[.j: x^j [h: A^{hij}]]"),
    (r"y^i = \log \sum_j A^{ij}", "i", "log([j: A^{ij}])"),
    (r"y^i = 1 - \sum_j A^{ij}", "i", "1 + -1 [j: A^{ij}]"),
    (r"y^i = X^{j(iH+a)} W^{aj}", "i", "[.ja: X^{j(iH+a)} W^{aj}]"),
    (r"\frac{\partial L}{\partial x^j} = A^{ij} \frac{\partial L}{\partial y^i}", "j",
     r"[.i: A^{ij} \frac{\partial L}{\partial y^i}]"),
    (r"\frac{\partial A^{ij}}{\partial S^{im}} = A^{ij} (\delta^{jm} - A^{im})", "ijm",
     r"A^{ij} (\delta^{jm} + -1 A^{im})"),
    (r"\sum_j A^{ij} V^{jc} = A^{ij} V^{jc}", "ic", "[.j: A^{ij} V^{jc}]"),
    (r"\sum_j A^{ij} = 1", "i", "1"),
    (r"X^{i(hH+a)} = Y^{hia}", "iha", "Y^{hia}"),
    (r"A^{ij} = \frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}", "ij", "softmax_j_j'(S^{ij})"),
    (r"A^{ij} = \frac{\exp(S^{ij} - m^i)}{\sum_k \exp(S^{ik} - m^i)}", "ij",
     "softmax_j_k(S^{ij} + -1 m^i)"),
    (r"A^{ij} = \frac{\exp(\sum_a Q^{ia} K^{ja})}{\sum_k \exp(\sum_a Q^{ia} K^{ka})}", "ij",
     "softmax_j_k([a: Q^{ia} K^{ja}])"),
    (r"y^i = \frac{\exp S^{ij}}{\sum_k \exp S^{ik}} x^j", "i", "[.j: softmax_j_k(S^{ij}) x^j]"),
    (r"A^{ij} = \frac{\exp S^{ij}}{\sum_k \exp B^{ik}}", "ij",
     "{exp(S^{ij}) / [k: exp(B^{ik})]}"),
    (r"A^{ij} = \frac{\exp(S^{ij} - m^i)}{\sum_k \exp S^{ik}}", "ij",
     "{exp(S^{ij} + -1 m^i) / [k: exp(S^{ik})]}"),
]  # fmt: skip


@pytest.mark.parametrize("latex, free, expected", PLACED)
def test_implied_sum_reaches_over_the_innermost_product(latex, free, expected):
    result = bound(latex)
    assert result.free == tuple(free)
    assert shown(result.sides[-1]) == expected
    left = result.sides[0]
    linear = isinstance(left, Tensor) and any(not isinstance(i, str) for i in left.indices)
    assert result.identity == (not isinstance(left, Tensor | Derivative) or linear)


# (LaTeX, what the caret marks, the reason)
REFUSED = [
    (r"y^{ik} = A^{ij} x^j", "k", "the index k of the left side stands nowhere on the right"),
    (r"y^{i'j} = x^j z^i", "i'", "the index i' of the left side"),
    (r"y^{ii} = x^i", "i", "stands twice on the left side"),
    (r"y^i = \exp A^{ij}", "j", "summed inside the function exp: write the"),
    (r"y^i = 2 \log\left(A^{ij} x^j\right)", "j", "summed inside the function log"),
    (r"y^i = \left(A^{ij}\right)^2", "j", "summed inside a power"),
    (r"y^i = \sqrt{A^{ij}}", "j", "summed inside the function sqrt"),
    (r"y^i = \frac{x^i}{A^{ij}}", "j", "summed in a denominator"),
    (r"y^i = \frac{A^{ij}}{B^{ij}}", "j", "ambiguous: the index j stands above and below"),
    (r"y^{ic} = A^{ic} + b^c", "b^c", r"lacks the free index i: declare broadcast=\('i',\)"),
    (r"y^i = x^i + z", "z", "lacks the free index i"),
    (r"y^i = \sum_i A^{ij}", "i", "the index i is free"),
    (r"y^i = \sum_j \left(A^{ij} \sum_j B^{ij}\right)", "j", "the index j is summed already"),
    (r"y^i = \sum_k A^{ij}", "k", "no index k; subscripts belong to names"),
    (r"y = \sum_j A_{ij}", "j", "no index j; subscripts belong to names"),
    (r"y^i = \left(\sum_j A^{ij}\right) x^j", "j", "stands outside of it too"),
    (r"y^i = \sum_j A^{ij} + B^{ij}", "j", "stands outside of it too"),
    (r"Q_h = X W_Q^h", "h", "would be summed, but the left side's name holds it"),
    (r"A^{ij} = \frac{\exp S^{ij}}{\sum_j \exp S^{ij}}", "j", "the index j is free"),
]


@pytest.mark.parametrize("latex, place, reason", REFUSED)
def test_refused_with_a_caret_at_the_place(latex, place, reason):
    refused(bound, latex, place, reason)


def test_broadcast_is_declared():
    result = bound(r"y^{ic} = A^{ij} V^{jc} + b^c", broadcast=("i",))
    assert shown(result.sides[1]) == "[.j: A^{ij} V^{jc}] + b^c"
    with pytest.raises(ValueError, match="broadcast='j' is no free index; free here: i, c"):
        bound(r"y^{ic} = A^{ij} V^{jc}", broadcast=("j",))


# (LaTeX, what the caret marks or "" where the strict reading agrees)
STRICT = [
    (r"Q^{hia} = X^{ib} W_Q^{hba}", ""),
    (r"Y^{id} = O^{hic} W_O^{hcd}", ""),
    (r"A^{hij} = \frac{\exp S^{hij}}{\sum_{j'} \exp S^{hij'}}", ""),
    (r"\frac{\partial L}{\partial W_Q^{hba}} = X^{ib} \frac{\partial L}{\partial Q^{hia}}", ""),
    (r"y^i = (A^{ij} + B^{ij}) x^j", ""),
    (r"y^i = A^{ij} x^j + B^{ik} z^k", ""),
    (r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}", "h"),
    (r"O^{hic} = A^{hij} V^{hjc}", "h"),
    (r"y^i = A^{ij}", "j"),
    (r"y^i = A^{ij} x^j z^j", "j"),
    (r"y^i = x^i z^i", "i"),
]


@pytest.mark.parametrize("latex, place", STRICT)
def test_strict_reading(latex, place):
    if not place:
        assert bound(latex, strict=True) == bound(latex)
        return
    refused(lambda latex: bound(latex, strict=True), latex, place, "the strict reading")
    bound(latex)
