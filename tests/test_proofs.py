"""The theorems of ``proofs/``: their list, the statements made from pages, the whole check."""

import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from mha_book.notation import Equation
from mha_book.notation.coq import to_coq
from tests.book.extensions import ROOT, ledger
from tests.turns import commit

_spec = importlib.util.spec_from_file_location("proofs_check", ROOT / "proofs" / "check.py")
assert _spec is not None
assert _spec.loader is not None
check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check)
THEOREMS = check.theorems()


def source(file: str) -> str:
    return (ROOT / "proofs" / f"{file}.v").read_text(encoding="utf8")


def test_the_statements_are_those_of_the_pages() -> None:
    assert check.statements() == source("Statements"), "run: python proofs/check.py --write"


def test_the_list_has_every_theorem_and_its_statement_uses_its_equations() -> None:
    listed = Counter((t["file"], t["name"]) for t in THEOREMS)
    written = [
        (path.stem, name)
        for path in (ROOT / "proofs").glob("*.v")
        for name in re.findall(r"^Theorem (\w+)", path.read_text(encoding="utf8"), re.M)
    ]
    assert listed == Counter(written)
    for theorem in THEOREMS:
        text = source(theorem["file"])
        for place in theorem.get("equations", []):
            name = place.split("/")[1].replace("-", "_")
            # In a section the equations are hypotheses above the theorem.
            assert re.search(rf"\b{name}(_\d)?\b", text), f"{theorem['name']}: {place}"
        if len(theorem.get("equations", [])) == 1:
            said = dict(check._THEOREM.findall(text))[theorem["name"]]
            assert theorem["equations"][0].split("/")[1].replace("-", "_") in said


def test_a_badge_is_of_an_equation_of_its_theorem_and_a_claim_is_in_the_ledger() -> None:
    claims = {row["id"] for row in ledger.load_ledger(ROOT / "book" / "claims.yml")}
    for theorem in THEOREMS:
        labels = {place.split("/")[1] for place in theorem.get("equations", [])}
        assert {*theorem.get("proves", [])} <= labels, theorem["name"]
        assert {*theorem.get("claims", [])} <= claims, theorem["name"]


@pytest.mark.parametrize("word", ["Admitted", "Axiom", "admit", "Parameter"])
def test_nothing_is_taken_on_trust(word: str) -> None:
    assert check._FORBIDDEN.search(f"Proof. {word}. Qed.")
    assert not [p for p in (ROOT / "proofs").glob("*.v") if check._FORBIDDEN.search(p.read_text())]


def test_a_sign_altered_on_a_page_alters_its_statement_alone() -> None:
    altered = check.statements({"sdpa-shift": (r"\exp\left( S^{ij} - m", r"\exp\left( S^{ij} + m")})
    pairs = zip(altered.splitlines(), source("Statements").splitlines(), strict=True)
    ((new, old),) = [(a, b) for a, b in pairs if a != b]
    assert new == old.replace("exp (S i j - m i)", "exp (S i j + m i)")


@pytest.mark.parametrize(
    ("latex", "said"),
    [
        (r"s = A^{ii}", "s = sum n_i (fun i => A i i)."),
        (r"R^{ij} = -x^i (y^j)^2 - \sqrt{3}", "R_ i j = - x i * (y j) ^ 2 - sqrt 3."),
        (r"U^{ha} = Z^{(hH+a)}", "U h a = Z (h * H + a)%nat."),
        (r"a^i = \log \sum_j \exp W^{ij}", "a i = ln (sum n_j (fun j => exp (W i j)))."),
        (r"y^i = \frac{1}{2} (x^i - z^i)", "y i = (1 / 2) * (x i - z i)."),
        (r"x^i = \delta^{ij} x^j", "x i = sum n_i (fun j => delta i j * x j)."),
    ],
)
def test_what_an_equation_says_in_coq(latex: str, said: str) -> None:
    equation = Equation(latex, broadcast=("i", "j") if "sqrt" in latex else ())
    assert to_coq(equation, "name").splitlines()[-1].strip() == said


def test_a_root_as_power_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        to_coq(Equation(r"y^i = (x^i)^{1/2}"), "name")


@pytest.mark.slow
def test_every_theorem_holds_and_no_drawn_proof_survives_its_planted_error() -> None:
    if shutil.which("coqc") is None and not os.environ.get("CI"):
        pytest.skip(f"coqc is missing: {check.INSTALL}")
    drawn = random.Random(commit()).sample([t["name"] for t in THEOREMS], 12)
    command = [sys.executable, "proofs/check.py", "--planted", *drawn]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert f"{len(drawn)} of {len(drawn)} planted errors made the proof fail" in done.stdout
