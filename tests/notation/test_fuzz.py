"""Strings that nobody meant: an answer or a located error, never anything else."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_book.notation.equation import Equation, run_loops
from mha_book.storage import read_result
from tests.fuzzing import main
from tests.notation.fuzz import KINDS, computed, outcome, run

pytestmark = [pytest.mark.usefixtures("no_type_checks")]

STORED = Path(__file__).parents[1] / "data" / "fuzz_notation.json"


@pytest.mark.parametrize("kind", KINDS)
def test_every_string_is_read_or_refused_at_a_place(kind: str) -> None:
    @settings(max_examples=40)
    @given(st.randoms(use_true_random=False))
    def check(draw: random.Random) -> None:
        outcome(KINDS[kind](draw))

    check()


@settings(max_examples=60)
@given(st.text(max_size=30))
def test_any_text(source: str) -> None:
    outcome(source)


def test_what_is_read_computes_what_its_loops_do() -> None:
    """Most of the strings by the grammar are equations: enough of them are computed."""
    draw = random.Random(3)
    verdicts = []
    while len(verdicts) < 12:
        verdicts += [computed(equation) for equation in outcome(KINDS["grown"](draw))]
    assert verdicts.count("computed") >= 6


@pytest.mark.slow
def test_ten_thousand_strings() -> None:
    found = run(seconds=25, seed=7, most=10_000)
    assert found.counts["strings"] >= 1000
    assert found.slowest_ms < 1000


@pytest.mark.exhaustive
def test_a_million_strings() -> None:
    """Half an hour of one core; a string that takes a second ends it, and memory stays bounded."""
    found = run(seconds=7200, seed=1, most=10**6)
    assert found.counts["strings"] == 10**6
    assert found.peak_MB < 3000


def test_what_was_stored_of_a_longer_run() -> None:
    found = read_result(STORED)
    counts = found["counts"]
    assert counts["strings"] == sum(counts[kind] for kind in KINDS) >= 10_000
    assert {counts[kind] for kind in KINDS} <= {counts["soup"], counts["soup"] - 1}
    assert counts["computed"] > 0
    assert found["slowest_ms"] < 1000
    assert found["peak_MB"] < 3000
    outcome(found["slowest"])


@pytest.mark.slow
def test_it_runs_in_processes_and_stores_what_it_saw(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    given = ["--inputs", "31", "--seed", "5", "--processes", "2", "--output", str(path)]
    main(run, "strings", given)
    found = read_result(path)
    assert found["counts"]["strings"] == 31
    assert found["provenance"]["seeds"] == [5, 6]
    one, other = run(60, 5, 16).counts, run(60, 6, 15).counts
    assert found["counts"] == one + other


# --- what was found -------------------------------------------------------------------------------


@pytest.mark.parametrize("power", ["2^{99999999999}", "(x)^{1001}", "9^{-99999999999999}"])
def test_a_power_of_many_digits_is_refused(power: str) -> None:
    """It hung: Python's integers grow without end."""
    with pytest.raises(ValueError, match="expected a power of at most 1000"):
        Equation(f"y = {power}")


def test_powers_of_powers_of_numbers_end() -> None:
    """They hung, as integers; so did a named scalar that was given as an integer."""
    source = "2 s"
    for _ in range(8):
        source = f"({source})^{{99}}"
    equation = Equation(f"y = {source}")
    assert equation(s=1) == np.inf
    with pytest.raises(OverflowError):
        run_loops(equation, s=1)
    assert Equation("y = (2)^{-3}")() == run_loops(Equation("y = (2)^{-3}")) == 0.125


def test_numbers_beyond_floating_point() -> None:
    """They were an ``OverflowError``, or an array of objects."""
    many = r" \cdot ".join(["9" * 30] * 11)
    assert Equation(f"y = -{many}")() == -np.inf
    value = run_loops(Equation("y = 99999999999999999999"))
    assert (value.dtype, value) == (np.float64, 1e20)


def test_a_root_of_a_negative_number_is_none() -> None:
    """It was complex in the loops, and no number in the arrays."""
    equation = Equation("y = (x - 3)^{1/2}")
    assert np.isnan(equation(x=1))
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        run_loops(equation, x=1)
    assert run_loops(equation, x=7) == equation(x=7) == 2
