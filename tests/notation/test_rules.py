"""The index rules: which sums are implied, where they reach, and what is refused."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_book.notation.expression import (
    Add,
    Derivative,
    Expression,
    Function,
    Product,
    Quotient,
    Softmax,
    Sum,
    Tensor,
    children,
    free_indices,
)
from mha_book.notation.latex import render
from mha_book.notation.parser import parse
from mha_book.notation.rules import Bound, bind
from tests.notation.helpers import bound, examples, marked
from tests.notation.notes import PARSED, REJECTED


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
    with pytest.raises(ValueError, match=reason) as caught:
        bound(latex)
    assert marked(caught.value) == place


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
    (PARSED["N0 gradient of W_Q"][0], ""),
    (PARSED["N0 gradient of W_O"][0], ""),
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
    with pytest.raises(ValueError, match="the strict reading") as caught:
        bound(latex, strict=True)
    assert marked(caught.value) == place
    bound(latex)


TENSORS = st.tuples(
    st.sampled_from(["A", "B", "W_Q", "X'"]),
    st.lists(st.sampled_from("ijkm"), max_size=3),
)


@examples(100, 1000)
@pytest.mark.usefixtures("no_type_checks")
def test_product_sums_each_index_that_is_not_free_once(count):
    @settings(max_examples=count)
    @given(
        st.lists(TENSORS, min_size=1, max_size=4), st.lists(st.sampled_from("ijkm"), unique=True)
    )
    def check(plans, left):
        tensors = [Tensor(name, tuple(indices)) for name, indices in plans]
        latex = f"{render(Tensor('Y', tuple(left)))} = {' '.join(map(render, tensors))}"
        present = dict.fromkeys(i for tensor in tensors for i in tensor.indices)
        if missing := [index for index in left if index not in present]:
            with pytest.raises(ValueError, match=f"the index {missing[0]} of the left side"):
                bound(latex)
            return
        side = bound(latex).sides[1]
        assert free_indices(side) == tuple(i for i in present if i in left)
        assert (side.indices if isinstance(side, Sum) else ()) == tuple(
            index for index in present if index not in left
        )

    check()


# --- the equations of the notes ---------------------------------------------------------------


def split(indices: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w'*", indices))


def summed(node: Expression) -> list[str]:
    found = list(node.indices) if isinstance(node, Sum) else []
    for child in children(node):
        found += summed(child)
    return found


def read(latex: str) -> list[Bound]:
    return [bind(statement) for statement in parse(latex)]


def check(latex: str, expected: list[tuple[str, str]]) -> None:
    for result, (free, sums) in zip(read(latex), expected, strict=True):
        assert result.free == split(free)
        assert tuple(summed(result.sides[-1])) == split(sums)


@pytest.mark.parametrize("name", PARSED)
def test_equation_of_a_note_parses(name):
    check(*PARSED[name])


@pytest.mark.parametrize("name", REJECTED)
def test_formula_of_a_note_is_rejected_with_its_reason(name):
    latex, reason, _ = REJECTED[name]
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        read(latex)
    assert "^" in str(caught.value).splitlines()[-1]


@pytest.mark.parametrize("name", [name for name, row in REJECTED.items() if row[2]])
def test_index_form_of_a_rejected_formula_parses(name):
    check(*REJECTED[name][2])
