"""Contractions: taken apart by hand, ordered at the least cost, checked on random ones."""

import itertools
from fractions import Fraction
from math import prod

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mha_book.notation import Equation, run_loops
from mha_book.notation.evaluate import einsums, flatten, order, signed, subscripts
from mha_book.notation.expression import (
    Add,
    Delta,
    Expression,
    Function,
    Number,
    Power,
    Product,
    Quotient,
    Sum,
    Tensor,
)
from tests.notation.helpers import examples

pytestmark = pytest.mark.unoptimized

A, B, V = Tensor("A", ("i", "j")), Tensor("B", ("j", "k")), Tensor("v", ("k",))
TWO, HALF = Number(Fraction(2)), Number(Fraction(1, 2))
C = Tensor("c")


# --- taking apart -----------------------------------------------------------------------------


def test_nested_products_and_sums_are_one_contraction() -> None:
    inner = Sum(("k",), Product((B, V, HALF)))
    parts = flatten(Sum(("j",), Product((TWO, A, Product((inner, C))))))
    assert parts.number == 1
    assert parts.scalars == (C,)
    assert parts.factors == (A, B, V)
    assert parts.summed == ("j", "k")
    assert parts.output == ("i",)


def test_a_quotient_by_a_scalar_is_a_factor() -> None:
    root = Power(C, Fraction(1, 2))
    parts = flatten(Quotient(Sum(("j",), A), root))
    assert parts.factors == (A,)
    assert parts.scalars == (Quotient(Number(Fraction(1)), root),)
    assert parts.summed == ("j",)


def test_a_denominator_with_indices_stays_one_factor() -> None:
    quotient = Quotient(A, Tensor("z", ("i",)))
    assert flatten(Product((TWO, quotient))).factors == (quotient,)


def test_sums_of_one_name_are_told_apart() -> None:
    parts = flatten(Product((Sum(("j",), A), Sum(("j",), A))))
    assert parts.summed == ("j", "j'")
    assert parts.factors == (A, Tensor("A", ("i", "j'")))
    inside = flatten(Product((Sum(("j",), A), Tensor("x", ("j",)))))
    assert inside.summed == ("j'",)
    assert inside.factors == (Tensor("A", ("i", "j'")), Tensor("x", ("j",)))
    taken = flatten(Product((Sum(("j",), A), Sum(("j",), A), Tensor("x", ("j'",)))))
    assert taken.summed == ("j", "j''")


def test_a_delta_with_a_summed_index_vanishes() -> None:
    assert flatten(Sum(("j",), Product((Delta("i", "j"), A)))).factors == (Tensor("A", ("i", "i")),)
    assert flatten(Sum(("i",), Product((Delta("i", "j"), A)))).factors == (Tensor("A", ("j", "j")),)
    both = flatten(Sum(("i", "j"), Product((A, Delta("i", "j")))))
    assert (both.factors, both.summed) == ((Tensor("A", ("i", "i")),), ("i",))
    chain = Product((Delta("i", "j"), Delta("j", "k"), V))
    assert flatten(Sum(("j", "k"), chain)).factors == (Tensor("v", ("i",)),)
    free = flatten(Product((Delta("i", "j"), A)))
    assert free.factors == (Delta("i", "j"), A)
    trace = flatten(Sum(("j",), Delta("j", "j")))
    assert (trace.factors, trace.summed) == ((), ("j",))


@pytest.mark.parametrize(
    "term, expected",
    [
        (Product((Number(Fraction(-1)), A)), (True, A)),
        (Product((Number(Fraction(-1)), A, B)), (True, Product((A, B)))),
        (Product((Number(Fraction(-2)), A)), (True, Product((TWO, A)))),
        (Number(Fraction(-2)), (True, TWO)),
        (Sum(("j",), Product((Number(Fraction(-1)), A))), (True, Sum(("j",), A))),
        (Product((TWO, A)), (False, Product((TWO, A)))),
        (A, (False, A)),
    ],
)
def test_signs(term: Expression, expected: tuple[bool, Expression]) -> None:
    assert signed(term) == expected


def test_the_letters_of_einsum() -> None:
    assert subscripts([("i", "b"), ("h", "b", "a")], ("h", "i", "a")) == "ib,hba->hia"
    assert subscripts([("j", "j'")], ("j'",)) == "jJ->J"
    assert subscripts([("j", "j'", "j''")], ()) == "jJZ->"
    assert subscripts([(r"\mu", r"\nu")], (r"\nu",)) == "ZY->Y"


def test_contractions_within_functions_are_listed() -> None:
    inner = Sum(("j",), Product((A, Tensor("x", ("j",)))))
    node = Product((Function("exp", inner), Add((Tensor("z", ("i",)), inner))))
    assert einsums(node) == ("i,i->i", "ij,j->i", "ij,j->i")
    assert einsums(A) == ()


# --- the order --------------------------------------------------------------------------------


def steps(terms: list[str], output: str, **sizes: int) -> list[tuple[tuple[int, ...], str, str]]:
    found = order([tuple(term) for term in terms], tuple(output), sizes)
    return [(step.operands, "".join(step.result), "".join(step.summed)) for step in found]


def test_a_chain_from_its_cheap_end() -> None:
    found = steps(["ij", "jb", "b"], "i", i=3, j=5, b=11)
    assert found == [((1, 2), "j", "b"), ((0, 3), "i", "j")]


def test_an_index_of_one_tensor_is_summed_first() -> None:
    found = steps(["ij", "ib"], "b", i=3, j=5, b=11)
    assert found == [((0,), "i", "j"), ((2, 1), "b", "i")]
    assert steps(["ij"], "i", i=3, j=5) == [((0,), "i", "j")]
    assert steps(["ij"], "ji", i=3, j=5) == []


def test_where_every_order_needs_room_the_cheapest_is_taken() -> None:
    # No pair shares an index: any product of two is larger than each, and the result a number.
    found = steps(["ab", "bc", "ca"], "", a=5, b=5, c=5)
    assert [operands for operands, _, _ in found] == [(0, 1), (2, 3)]


def cheapest(terms: list[str], output: str, sizes: dict[str, int], limit: float) -> float:
    """The operations of the best of all orders, by trying each."""
    if len(terms) == 1:
        return 0
    best = float("inf")
    for first, second in itertools.combinations(range(len(terms)), 2):
        rest = [term for at, term in enumerate(terms) if at not in (first, second)]
        both = set(terms[first] + terms[second])
        kept = "".join(both & set("".join(rest) + output))
        if prod(sizes[i] for i in kept) <= limit:
            cost = prod(sizes[i] for i in both) * (1 if both == set(kept) else 2)
            best = min(best, cost + cheapest([*rest, kept], output, sizes, limit))
    return best


Case = tuple[list[str], str, dict[str, int]]


@st.composite
def contractions(draw: st.DrawFn) -> Case:
    """Up to four tensors over up to six indices of different sizes, and what stays."""
    letters = "abcdef"[: draw(st.integers(1, 6))]
    term = st.lists(st.sampled_from(letters), max_size=3, unique=True).map("".join)
    terms = draw(st.lists(term, min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
    sizes = dict(zip("abcdef", draw(st.permutations([1, 2, 3, 4, 5, 2])), strict=True))
    return terms, output, sizes


@examples(150, 1500)
@pytest.mark.usefixtures("no_type_checks")
def test_the_order_is_the_best_there_is(count: int) -> None:
    # In the second, another order is the best where a product with a sum costs as one without.
    sizes = dict(zip("abcdef", (13, 2, 11, 3, 5, 7), strict=True))
    rule = given(contractions())(is_the_best)
    rule = example((["ad", "bd", "d"], "ab", {"a": 2, "b": 3, "d": 5}))(rule)
    rule = example((["bfc", "ecd", "dc", "de"], "", sizes))(rule)
    settings(max_examples=count)(rule)()


def is_the_best(case: Case) -> None:
    terms, output, sizes = case
    found = order([tuple(term) for term in terms], tuple(output), sizes)
    assert all(len(step.operands) <= 2 for step in found)
    if found and len(terms) > 1:
        assert set(found[-1].result) == set(output)
    reduced = [
        "".join(i for i in term if i in output or any(i in o for o in terms[:at] + terms[at + 1 :]))
        for at, term in enumerate(terms)
    ]
    pairs = [step for step in found if len(step.operands) == 2]
    cost = sum(
        prod(sizes[i] for i in (*step.result, *step.summed)) * (2 if step.summed else 1)
        for step in pairs
    )
    most = max(prod(sizes[i] for i in term) for term in [*reduced, output])
    within = cheapest(reduced, output, sizes, most)
    if within < float("inf"):
        assert all(prod(sizes[i] for i in step.result) <= most for step in pairs)
        assert cost == within
    else:
        assert cost == cheapest(reduced, output, sizes, float("inf"))


# --- random contractions ----------------------------------------------------------------------


RING = dict(zip("abcdef", [2, 3, 1, 4, 2, 5], strict=True))


@examples(20, 400)
@pytest.mark.usefixtures("no_type_checks")
def test_a_contraction_is_its_loops_and_its_einsum(count: int) -> None:
    rule = given(contractions(), st.integers(0, 2**31))(is_its_loops_and_its_einsum)
    rule = example((["ab", "ab", "", "b"], "ba", {"a": 2, "b": 3}), 0)(rule)
    rule = example((["abc", "cde", "def", "fab"], "", RING), 1)(rule)
    settings(max_examples=count)(rule)()


def is_its_loops_and_its_einsum(case: Case, seed: int) -> None:
    terms, output, sizes = case
    rng = np.random.default_rng(seed)
    names = "XYZW"
    right = " ".join(
        f"{name}^{{{t}}}" if t else name for name, t in zip(names, terms, strict=False)
    )
    equation = Equation((f"R^{{{output}}}" if output else "R") + f" = {right}")
    arrays = {
        name: rng.normal(size=[sizes[i] for i in term])
        for name, term in zip(names, terms, strict=False)
    }
    loops = run_loops(equation, arrays)
    written = ",".join(terms) + "->" + output
    np.testing.assert_allclose(loops, np.einsum(written, *arrays.values()), rtol=1e-10, atol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(equation)(arrays), loops, rtol=1e-10, atol=1e-12)
    if all(terms) and "".join(terms):
        assert equation.einsum == written


def test_many_tensors_have_an_order_too() -> None:
    letters = "abcdefghij"
    terms = [letters[i : i + 2] for i in range(9)]
    sizes = {letter: 2 + at % 3 for at, letter in enumerate(letters)}
    right = " ".join(f"M_{i}^{{{term}}}" for i, term in enumerate(terms))
    equation = Equation(f"R^{{aj}} = {right}")
    rng = np.random.default_rng(0)
    arrays = {f"M_{i}": rng.normal(size=[sizes[x] for x in t]) for i, t in enumerate(terms)}
    expected = np.linalg.multi_dot(list(arrays.values()))
    np.testing.assert_allclose(equation(arrays), expected, rtol=1e-4, atol=1e-4)


def test_scalars_go_into_the_smallest_tensor() -> None:
    # The result has 4 elements, the operands 40 each, what lies between 16.
    equation = Equation(r"S^{ij} = c Q^{ia} K^{ja}")
    text = str(
        jax.make_jaxpr(lambda q, k: equation(Q=q, K=k, c=2.0))(np.ones((2, 20)), np.ones((2, 20)))
    )
    scaled = [line for line in text.splitlines() if " mul " in line]
    assert len(scaled) == 1
    assert "f32[2,2]" in scaled[0]
