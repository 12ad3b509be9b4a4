"""The two ledgers are complete, and every verdict in them links to evidence that runs."""

import re

import pytest
import yaml

from tests.book import ledger_gates
from tests.book.extensions import ROOT, ledger
from tests.book.verdicts import verdict_problems
from tests.turns import git

# Every claim of the source notes has one of these ids, whether the book has taken it up or not.
IDS = tuple(f"C{number:02}" for number in range(1, 54))


ROWS = {form.name: ledger.load_ledger(ROOT / form.file) for form in ledger.LEDGERS}
ENTRIES = [entry for rows in ROWS.values() for entry in rows]


@pytest.mark.parametrize("form", ledger.LEDGERS, ids=lambda form: form.name)
def test_a_ledger_is_sound(form):
    entries = ROWS[form.name]
    ids = IDS if form is ledger.CLAIMS else tuple({entry["id"] for entry in entries})
    pages, tests = ledger.read_pages(ROOT), ledger_gates.evidence_tests(ROOT)
    assert ledger_gates.ledger_problems(entries, ids, pages, tests, form) == []


def test_every_paper_is_in_the_bibliography_with_its_address():
    works = ledger.read_works(ROOT)
    for entry in ROWS["papers"]:
        assert re.fullmatch(r"P[1-9]\d*", entry["id"])
        assert re.match(r"https?://", works[entry["paper"]].address), entry["id"]


def test_the_files_of_rows_are_stored_and_tell_every_number():
    for entry in ROWS["papers"]:
        values = {}
        if entry["chapter"]:
            values |= ledger.glued_values(ROOT / "book" / f"{entry['chapter']}.ipynb")
        if entry["file"]:
            assert re.fullmatch(r"book/data/[\w.-]+", entry["file"])
            values |= ledger.stored_values(ROOT / entry["file"])
        for key in ("condition", "reason", "measured"):
            assert "{glue" not in ledger.fill_numbers(entry[key], values), entry["id"]


def test_every_verdict_is_the_one_that_its_test_ends_with():
    assert verdict_problems(ENTRIES) == []


@pytest.mark.parametrize(
    "outcomes, condition, verdict",
    [
        ([], "", "not tested"), ([True, True], "", "confirmed"), ([True, None], "x", "undecided"),
        ([False, None], "", "undecided"), ([False], "", "refuted"),
        ([True, False], "", "corrected"), ([True, False], "x", "holds if"),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_its_parts(outcomes, condition, verdict):
    assert ledger.verdict_of(outcomes, condition) == verdict


@pytest.mark.parametrize(
    "text, found",
    [
        ("0.3 ± 0.1", (0.3, 0.2, 0.4)), ("+7.53 [+7.39, -7.68]", (7.53, 7.39, -7.68)),
        ("12% [8, 21]", (12, 8, 21)), ("0.70 (from 0.56 to 0.82)", (0.7, 0.56, 0.82)),
        ("0.1 to 0.3", (0.2, 0.1, 0.3)), ("16 of 32", (16, 16, 16)),
        ("11,677", (11677, 11677, 11677)),
    ],
)  # fmt: skip
def test_an_interval_is_read(text, found):
    assert ledger.interval_of(text) == pytest.approx(found)


def judged(*parts, **values):
    """The outcomes of one row of a chapter whose cells glued these values."""
    entry = {"id": "C1", "chapter": "", "file": "", "over": "5 seeds", "parts": [*parts]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "row_values", lambda entry, root: values)
        return [part.holds for part in ledger.judge([entry], ROOT)[0]]


def test_a_part_is_open_while_its_interval_holds_the_margin():
    signs = ("x < 1", "x > 1", "x in [1, 3]", "x > 3", "x < 3")
    assert judged(*signs, x="2") == [False, True, True, False, True]
    assert [judged(sign, x="2 ± 0.5")[0] for sign in signs] == [False, True, True, False, True]
    assert [judged(sign, x="2 ± 1.5")[0] for sign in signs] == [None] * 5
    assert judged("open: why", True, False) == [None, True, False]


def test_what_is_taken_over_a_sample_has_an_interval():
    tried = [(e["id"], p.value) for e in ENTRIES if e["over"] for p in e["judged"] if p.value]
    bare = {name for name, value in tried if not re.search(r"[±[(]| of | to ", value)}
    assert bare == {"C25"}, "a ratio of times, beside accuracies over texts"


def test_intervals_of_one_page_are_held_to_the_levels_of_holm():
    # Of five seeds: 1 ± 0.9 excludes 0 with p = 0.037, enough alone and not as one of two.
    assert judged("x > 0", x="1 ± 0.9") == [True]
    assert judged("x > 0", "y > 0", x="1 ± 0.8", y="1 ± 2") == [None, None]  # normal: True
    assert judged("x > 0", "y > 0", x="1 ± 0.9", y="1 ± 0.1") == [True, True]


def test_no_number_of_the_ledger_is_typed():
    assert {e["id"]: found for e in ENTRIES if (found := ledger_gates.typed_numbers(e))} == {}


@pytest.mark.parametrize("typed", ["0.82", "30%", "8 percent", "342", "11,677", "1e-12"])
def test_a_typed_number_is_found_unless_the_claim_has_it(typed):
    entry = dict.fromkeys(("condition", "measured"), "float32, GPT-2, C15, 64, {glue:text}`x-2048`")
    entry |= {"claim": "Of MiniLM-L6.", "reason": f"It was {typed} of it."}
    number = typed.split()[0].rstrip("%")
    assert ledger_gates.typed_numbers(entry) == [f"reason: {number}"]
    assert ledger_gates.typed_numbers({**entry, "claim": f"It is {typed}."}) == []


def margins(rows):
    """The parts of each row, of open ones not why, what its intervals share, and its numbers."""
    return {
        (row["id"], row.get("moved", "")): [
            *(str(part).partition(":")[0] for part in row["parts"]),
            row.get("over") or "",
            (row.get("family") or row.get("chapter")) if row.get("over") else "",
            *re.findall(r"\d[\d,.]*\d|\d+%", row["claim"] + row.get("scope", "")),
        ]
        for row in rows
        if "parts" in row
    }


def committed(file):
    """What each row's margins were in the commit that first had them, as far as git knows."""
    assert file in ("book/claims.yml", "book/papers.yml"), "a ledger's past is that of its name"
    first = {}
    for commit in git("log", "--format=%H", "-m", "--", file).split():
        text = git("show", f"{commit}:{file}")
        if "parts:" in text:
            first |= margins(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    return first


@pytest.mark.parametrize("form", ledger.LEDGERS, ids=lambda form: form.name)
def test_margins_are_those_that_were_first_committed(form):
    """And what tests find, too: whoever moves one says why (``moved``), which the ledger shows."""
    rows = yaml.safe_load((ROOT / form.file).read_text(encoding="utf8"))
    told, first = margins(rows), committed(form.file)
    assert {name for name, _ in first} <= {name for name, _ in told}, "a row that is gone"
    moved = {name: (first[name], now) for name, now in told.items() if first.get(name, now) != now}
    assert moved == {}, "margins that are not as they were first committed: then, now"
    edits = {"parts": ["x < 91"]}, {"claim": "By 99%."}, {"over": "9 x", "family": "another"}
    for edit in edits:  # would have been found in any row
        planted = margins({**row, **edit} for row in rows if "parts" in row)
        assert all(now != first[name] for name, now in planted.items() if name in first)
