"""The full product: its order, its journals, and what was stored of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from mha_book.attention.dispatch import IMPLEMENTATIONS
from mha_book.storage import read_result
from tests.attention.contract import cases, whole
from tests.attention.contract.cases import Case
from tests.attention.contract.suite import Outcome

STORED = Path(__file__).parents[2] / "data" / "contract.json"
HEADING = {"conditions": {"compiled": "unoptimized", "sources": "0"}}


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """A small product whose cases pass unseen; the list has those that ran."""
    ran: list[Case] = []
    small = [part[:5] for part in whole.parts()[:7]]

    def note(case: Case) -> Outcome:
        ran.append(case)
        complaints = ("wrong",) if case.implementation == "decode" and case.lse else ()
        return Outcome(case, cases.is_refused(case), 0.25, complaints)

    monkeypatch.setattr(whole, "run", note)
    monkeypatch.setattr(whole, "parts", lambda: small)
    return ran


def test_the_order_has_every_case_once_and_is_fair() -> None:
    parts = whole.parts()
    every = [case for part in parts for case in part]
    assert sorted(every) == sorted(cases.product("reference"))
    assert parts == whole.parts()
    for name, levels in cases.FACTORS.items():
        some = [getattr(case, name) for part in parts[: len(parts) // 4] for case in part]
        for level in levels:  # each level has its share of what a run that stops early has seen
            expected = len(some) / len(levels)
            assert abs(some.count(level) - expected) < 0.35 * expected
    sizes = {len(part) for part in parts}
    assert max(sizes) < 80, "a part is what is lost at most of the programs compiled"


def test_a_run_that_stops_anywhere_is_gone_on_with(
    visited: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, ordinary = tmp_path / "one.jsonl", whole.run
    assert whole.go_on(journal, HEADING, seconds=-1) == 0

    def breaks(case: Case) -> Outcome:
        if len(visited) == 8 * 3 + 5:
            raise KeyboardInterrupt
        return ordinary(case)

    monkeypatch.setattr(whole, "run", breaks)
    with pytest.raises(KeyboardInterrupt):
        whole.go_on(journal, HEADING)
    monkeypatch.setattr(whole, "run", ordinary)
    journal.write_text(journal.read_text()[:-7])  # the third line is cut off too
    assert whole.go_on(journal, HEADING) == 35 - 2
    assert whole.go_on(journal, HEADING) == 0
    lines = journal.read_text().splitlines()[1:]
    assert len({json.loads(line)["levels"] for line in lines}) == len(lines) == 35
    with pytest.raises(ValueError, match=r"one\.jsonl: expected a journal of .*remove it"):
        whole.go_on(journal, {"conditions": {"compiled": "optimized"}})


def test_shares_are_the_whole_and_a_failure_is_told(visited: list[Case], tmp_path: Path) -> None:
    journals = [tmp_path / f"{number}.jsonl" for number in (1, 2)]
    counts = [whole.go_on(journal, HEADING, (n, 2)) for n, journal in enumerate(journals, 1)]
    assert counts == [20, 15]
    assert len(set(visited)) == len(visited) == 35 * len(IMPLEMENTATIONS)
    found = whole.summary(journals)
    assert found["levels"] == {"all": 12096, "unoptimized": 35}
    wrong = [case for case in visited if case.implementation == "decode" and case.lse]
    assert [failure[2] for failure in found["failures"]] == [case.name for case in wrong]
    counted = found["found"]["unoptimized"]
    for name in IMPLEMENTATIONS:
        refused = sum(count["refused"] for count in counted[name].values())
        mine = [case for case in visited if case.implementation == name]
        assert refused == sum(map(cases.is_refused, mine))
        assert sum(count["served"] for count in counted[name].values()) == 35 - refused
    assert sum(count["failed"] for count in counted["decode"].values()) == len(wrong) > 0


def test_journals_of_different_code_are_not_added(visited: list[Case], tmp_path: Path) -> None:
    other = {"conditions": {"compiled": "unoptimized", "sources": "1"}}
    for number, heading in enumerate((HEADING, other)):
        whole.go_on(tmp_path / f"{number}.jsonl", heading, seconds=-1)
    with pytest.raises(ValueError, match="expected one state of the code"):
        whole.summary(sorted(tmp_path.iterdir()))


def test_what_was_stored_has_all_its_parts_and_no_failure_that_was_not_mended() -> None:
    document = read_result(STORED)
    failed = [one[:3] for one in document["failures"]]
    assert [one[:3] for one in document["again"]] == failed
    assert [complaints for *_, complaints in whole.again(document["failures"])] == [[]] * len(
        failed
    )
    levels = document["levels"]
    assert levels["all"] == cases.count("reference")
    for way, by_name in document["found"].items():
        assert set(by_name) == set(IMPLEMENTATIONS)
        for name, by_dtype in by_name.items():
            assert set(by_dtype) == set(cases.DTYPES)
            total = sum(count["served"] + count["refused"] for count in by_dtype.values())
            assert total == levels[way], (way, name)
            for count in by_dtype.values():
                assert count["worst"] <= 1 or count["failed"]
                assert (count["worst"] > 0) == (count["served"] > 0)
    counts = (
        c for by_name in document["found"].values() for b in by_name.values() for c in b.values()
    )
    assert sum(count["failed"] for count in counts) == len(failed)
    if levels["unoptimized"] == levels["all"]:
        served = {
            name: sum(count["served"] for count in by_dtype.values())
            for name, by_dtype in document["found"]["unoptimized"].items()
        }
        assert served == {
            name: sum(not cases.is_refused(case) for case in cases.product(name))
            for name in IMPLEMENTATIONS
        }


@pytest.mark.slow
@pytest.mark.unoptimized
@pytest.mark.parametrize("number", [0, 2])
def test_a_slice_of_what_was_stored_again(number: int) -> None:
    sample: dict[str, Any] = read_result(STORED)["sample"]
    levels, outcomes = list(sample.items())[number]
    (case,) = (one for one in cases.product("reference") if one.name == levels)
    assert set(outcomes) == set(IMPLEMENTATIONS)
    for name, (refused, worst) in outcomes.items():
        outcome = whole.run(case._replace(implementation=name))
        assert outcome.complaints == ()
        assert outcome.refused == refused
        assert outcome.worst == pytest.approx(worst, rel=1, abs=0.05)  # one processor's rounding
