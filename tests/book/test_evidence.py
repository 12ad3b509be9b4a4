"""The page of evidence has every test that a claim names, and nothing leads to a place made up."""

import re
import subprocess

import pytest

from tests.book.extensions import ROOT, evidence, ledger
from tests.book.test_finding import ids, plain

ROWS = {each.name: ledger.load_ledger(ROOT / each.file) for each in ledger.LEDGERS}
ENTRIES = [entry for rows in ROWS.values() for entry in rows if entry["test"]]
TESTS = evidence.by_test(ENTRIES)


# The built pages.


@pytest.fixture(scope="module")
def pages(built_book) -> dict[str, str]:
    """The text of every built page that can have a claim on it, by name."""
    names = {*ROWS, "evidence", *(entry["chapter"] for entry in ENTRIES if entry["chapter"])}
    return {n: (built_book / "book" / f"{n}.html").read_text(encoding="utf8") for n in names}


def evidence_lines(page: str) -> list[str]:
    return re.findall(r'<p class="claim-evidence">(.*?)</p>', page, re.DOTALL)


@pytest.mark.parametrize("name", ROWS)
def test_every_evidence_link_of_a_ledger_leads_to_its_test(pages, name):
    anchors = ids(pages["evidence"])
    lines = [line for line in evidence_lines(pages[name]) if "Evidence:" in line]
    rows = [entry for entry in ROWS[name] if entry["test"]]
    by_name = {entry["test"]: ledger.evidence_anchor(entry["test"]) for entry in rows}
    assert len(lines) == len(rows)
    for line in lines:
        links = re.findall(r'href="evidence\.html#([^"]+)"', line)
        assert links == [by_name[plain(line).split(", ")[-1]]]
        assert links[0] in anchors


def test_every_test_is_shown_once_with_its_claims_and_its_source(pages):
    sections = pages["evidence"].split('<section id="evidence-')[1:]
    assert len(sections) == len(TESTS)
    for section, (test, claims) in zip(sections, TESTS.items(), strict=True):
        assert f"evidence-{section}".startswith(f'{ledger.evidence_anchor(test)}"')
        assert plain(re.search(r"<h2>(.*?)<a ", section)[1]).endswith(test.split("::", 1)[1])
        assert re.findall(r'href="(?:claims|papers)\.html#ledger-(\w+)"', section) == [
            claim.lower() for claim in claims
        ]
        assert test in plain(section)
        shown = plain(re.search(r"<pre>(.*?)</pre>", section, re.DOTALL)[1])
        assert shown.strip("\n") == ledger.evidence_source(ROOT, test)
    for name, rows in ROWS.items():
        anchors = {anchor.removeprefix("ledger-") for anchor in ids(pages[name])}
        assert {entry["id"].lower() for entry in rows} <= anchors


# Addresses.

NAME = "mha-book"
MADE_UP = re.compile(
    rf"\b{NAME}\.github\.io|git(?:hub|lab)\.com[/:]{NAME}\b|/gh/{NAME}\b|/github/{NAME}\b", re.I
)


def test_no_file_names_an_address_that_was_made_up():
    listed = ["git", "ls-files", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    texts = {p: p.read_text(encoding="utf8", errors="ignore") for p in paths if p.is_file()}
    assert [path for path, text in texts.items() if MADE_UP.search(text)] == []
    assert MADE_UP.search(f"https://colab.research.google.com/github/{NAME}/x")
