"""Every displayed equation that the notation reaches is run from the text of its page."""

import pytest

from tests.book.equations import EXECUTED, Executed
from tests.book.executed import alterations, compare
from tests.book.extensions import ROOT, status
from tests.book.test_equations import page_equations

PAGES = {label: latex for shown in page_equations(ROOT).values() for label, latex in shown}


def test_every_executed_equation_is_counted_once():
    assert status.equations(ROOT)[-1][1]["executed"] == len(EXECUTED)


@pytest.mark.parametrize("label", sorted(EXECUTED))
def test_runs_from_the_page(label):
    """By loops, which compile nothing."""
    assert compare(PAGES[label], EXECUTED[label], by_loops=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("label", sorted(EXECUTED))
def test_a_call_computes_the_same(label):
    assert compare(PAGES[label], EXECUTED[label]) == []


def one_a_page() -> list:
    """Every label; but for one of each page they are left to the whole run."""
    pages = [[label for label, _ in shown] for shown in page_equations(ROOT).values()]
    first = {next((label for label in page if label in EXECUTED), None) for page in pages}
    slow = pytest.mark.slow
    return [pytest.param(x, marks=[] if x in first else [slow]) for x in sorted(EXECUTED)]


@pytest.mark.parametrize("label", one_a_page())
def test_an_altered_text_is_noticed(label):
    unnoticed = []
    altered = dict(alterations(PAGES[label]))
    for what, latex in altered.items():
        try:
            if not compare(latex, EXECUTED[label], by_loops=True):
                unnoticed.append(what)
        except (ValueError, ArithmeticError, IndexError):
            pass  # it does not parse any more, or does not fit the arrays
    assert unnoticed == []


# The gate itself.


def _scores(rng):
    q, k = rng.normal(size=(3, 2)), rng.normal(size=(5, 2))
    return {"Q": q, "K": k}, {"S": q @ k.T}


@pytest.mark.parametrize(
    "latex, problem",
    [
        ("S^{ij} = 2 Q^{ia} K^{ja}", "package's"),
        ("S^{ij} = Q^{ia} K^{ja} = 2 Q^{ia} K^{ja}", "sides"),
    ],
)
def test_a_wrong_equation_is_found(latex, problem):
    assert any(problem in line for line in compare(latex, Executed("x", _scores, (), 1e-9)))


def test_an_equation_without_a_second_value_is_found():
    alone = Executed("x", lambda rng: (_scores(rng)[0], {}), (), 1e-9)
    assert "nothing but" in compare("S^{ij} = Q^{ia} K^{ja}", alone)[0]
