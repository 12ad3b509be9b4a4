"""The exercises on index notation: stubs fail, solutions pass, mistakes get an answer."""

import pytest

from mha_book.exercises import verdict
from mha_book.exercises.index_notation import CHECKS

QUERY = r"\frac{\partial L}{\partial W_Q^{hba}} = W_K^{hb'a} \frac{\partial L}{\partial G^{hbb'}}"
KEYS = (
    r"\frac{\partial L}{\partial K^{kja}} = "
    r"\frac{1}{\sqrt{d_k}} Q^{kgia} \frac{\partial L}{\partial S^{kgij}}"
)
RIGHT = {
    "read": lambda: "hba,hBa->hbB",
    "write": lambda: r"M^{ij} = \frac{1}{N} \sum_h A^{hij}",
    "gradient": lambda: (QUERY, KEYS),
    "linear": lambda: 8 * 4096 * 64 * 64 * 4,
}


def ask(name, attempt):
    return verdict(f"index-notation/{name}", attempt)


def test_every_check_is_covered():
    assert set(RIGHT) == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_stub_is_not_attempted(name):
    assert ask(name, lambda: ...) == "not attempted"


@pytest.mark.parametrize("name", CHECKS)
def test_a_solution_passes(name):
    assert ask(name, RIGHT[name]) == "passed"


@pytest.mark.parametrize(
    "name, answer, feedback",
    [
        ("read", "hbB", "such as"),
        ("read", "hba,Bha->hbB", "the factors are"),
        ("read", "hba,hBa->hbBa", "a stands on the right alone"),
        ("read", "hba,hBa->bB", "indices of the left side"),
        ("read", "hba,hBa->hBb", "their order is not"),
        ("write", 3, "LaTeX as a string"),
        ("write", r"M^{ji} = \frac{1}{N} A^{hij}", "expected the left side"),
        ("write", r"M^{ij} = A^{hij}", "does not use N"),
        ("write", r"M^{ij} = \frac{1}{N} A^{hij} B^{hij}", "uses B"),
        ("write", r"M^{ij} = \frac{2}{N} A^{hij}", "other numbers"),
        ("write", r"M^{ij} = \frac{1}{N} A^{hi}", "stands nowhere on the right"),
        ("gradient", QUERY, "two equations"),
        ("gradient", (KEYS, QUERY), "expected the left side"),
        ("gradient", (QUERY, KEYS.replace(r"\frac{1}{\sqrt{d_k}} ", "")), "does not use d_k"),
        ("linear", 8 * 4096 * 4096 * 64 * 4, "order that makes scores"),
        ("linear", 8 * 4096 * 64 * 64 * 2, "two operations"),
        ("linear", 1, "expected the flops"),
    ],
)
def test_a_wrong_attempt_is_told_why(name, answer, feedback):
    said = ask(name, lambda: answer)
    assert said.startswith("not yet: ")
    assert feedback in said
