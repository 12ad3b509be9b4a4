"""Every symbol of the chapters is declared in book/symbols.yml, and none has two meanings."""

import pytest

from tests.book import gates
from tests.book.extensions import ROOT, symbols


def test_the_book_has_one_meaning_for_each_symbol():
    assert symbols.symbol_problems(ROOT) == [], "`python book/_ext/mha_book_symbols.py` lists these"


def test_every_notebook_declares_its_symbols():
    checked = symbols.checked_equations(ROOT)
    assert {f"book/{page}" for page in checked} >= {*gates.budgeted()}
    assert [*checked] == [path.stem for path in gates.chapters()]
    assert any(latex for _, latex in checked["scaled-attention"])


# The scanner and the gate, on formulas planted here.


def names(latex: str) -> set[str]:
    return {str(symbol) for symbol in symbols.scan(latex)}


@pytest.mark.parametrize(
    "latex, expected",
    [
        (r"S^{ij} = \frac{1}{\sqrt{d_k}} \sum_a Q^{ia} K^{ja}",
         {"S^{…}", "d_{k}", "Q^{…}", "K^{…}", "i", "j", "a"}),
        (r"W_Q^{hba} = W^{hba}_{Q}", {"W_{Q}^{…}", "h", "b", "a"}),
        (r"\widehat{X}^{ib} + \hat X", {"\\hat X^{…}", "\\hat X", "i", "b"}),
        (r"\tilde O^{hic'}", {"\\tilde O^{…}", "h", "i", "c'"}),
        (r"x_1 + x_2^2 \cdot 10^{-3}", {"x"}),
        (r"K^\top V^T", {"K", "V"}),
        (r"\operatorname{softmax}(S)\,\text{ for all } T", {"S", "T"}),
        (r"dQ^{hia} = \frac{\partial L}{\partial Q^{hia}}", {"Q^{…}", "L", "h", "i", "a"}),
        (r"X^{i(hH+a)}", {"X^{…}", "i", "h", "H", "a"}),
        (r"\begin{aligned} e^{x} &= \pi \end{aligned}", {"x"}),
        (r"I_{\text{stored}} = \varphi_p", {"I_{stored}", "\\phi_{p}"}),
        (r"a \\[1ex] b", {"a", "b"}),
        (r"\theta^{-2p/H} + y_{aa}", {"\\theta", "p", "H", "y_{aa}"}),
        (r"\mathcal{L}(\mathbf{w})", {"\\mathcal{L}", "w"}),
    ],
)  # fmt: skip
def test_the_scanner_finds_letters_with_their_decorations(latex, expected):
    assert names(latex) == expected


def undeclared(latex: str, *entries: str) -> list[str]:
    known = {s for e in entries for s in symbols.symbols_of(symbols.Declared("page", e, "x"))}
    return [str(s) for s in symbols.scan(latex) if not symbols.is_known(s, known)]


def test_arrays_and_numbers_are_two_symbols():
    assert undeclared("K^{ja}", "K", "j", "a") == ["K^{…}"]
    assert undeclared("Q K^\\top", "Q^{ia}", "K^{ja}") == []  # as matrices


def test_primes_numbers_and_lower_indices_make_no_new_symbol_and_accents_do():
    there = ("i", r"\theta", "E^{ip}, p")
    assert undeclared(r"\theta_p i' E_0^{ip}", *there) == []
    assert undeclared(r"\tilde E^{ip}", *there)[-1] == "\\tilde E^{…}"
    assert undeclared(r"\theta_{\max}", *there) == ["\\theta_{\\max}"]


D = symbols.Declared
FORMULAS = {"rain": ["y^i = A^{ij} x^j"], "snow": ["A^{ij} = r"]}


@pytest.mark.parametrize(
    "entries, problem",
    [
        ([D("rain", "A^{ij}", "one"), D("snow", "A^{ij}", "two")], "A^{…} has two meanings"),
        ([D("rain", "A^{ij}", "one"), D("everywhere", "A^{ji}", "two")], "has two meanings"),
        ([D("rain", "r", "rank")], "r is declared, and does not stand there"),
        ([D("everywhere", "z", "depth")], "z is declared, and does not stand there"),
        ([D("hail", "r", "rank")], "no page of the book declares r"),
        ([D("rain", "2", "two")], "'2' is no symbol"),
    ],
)
def test_a_wrong_declaration_is_found(entries, problem):
    assert any(problem in line for line in symbols.declaration_problems(entries, FORMULAS))


def test_a_sound_declaration_has_no_problem():
    sound = [D("rain", "A^{ij}", "one"), D("everywhere", "r", "rank"), D("snow", "A^{ij}", "one")]
    assert symbols.declaration_problems(sound, FORMULAS) == []


def test_an_undeclared_symbol_names_its_equations():
    shown = {"rain": [("wet", "y^i = A^{ij} x^j"), ("dry", "y^i = 0")]}
    entries = [D("rain", "A^{ij}", "weights"), D("rain", "i", "rows"), D("rain", "j", "columns")]
    assert symbols.undeclared_symbols(entries, shown) == [
        "rain: x^{…} is declared nowhere; it stands in wet",
        "rain: y^{…} is declared nowhere; it stands in wet, dry",
    ]
