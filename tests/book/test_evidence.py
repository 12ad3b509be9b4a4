"""The page of evidence has every test that a claim names, and nothing leads to a place made up."""

import html
import io
import re
import subprocess
from pathlib import Path

import pytest
from sphinx.application import Sphinx

from tests.book.extensions import ROOT, evidence, ledger

ROWS = {each.name: ledger.load_ledger(ROOT / each.file) for each in ledger.LEDGERS}
ENTRIES = [entry for rows in ROWS.values() for entry in rows if entry["test"]]
TESTS = evidence.by_test(ENTRIES)


# The built pages.


@pytest.fixture(scope="module")
def pages(built_book) -> dict[str, str]:
    """The text of every built page that can have a claim on it, by name."""
    names = {*ROWS, "evidence", *(entry["chapter"] for entry in ENTRIES if entry["chapter"])}
    return {n: (built_book / "book" / f"{n}.html").read_text(encoding="utf8") for n in names}


def ids(page: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page))


def evidence_lines(page: str) -> list[str]:
    return re.findall(r'<p class="claim-evidence">(.*?)</p>', page, re.DOTALL)


def text(piece: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", piece))


@pytest.mark.parametrize("name", ROWS)
def test_every_evidence_link_of_a_ledger_leads_to_its_test(pages, name):
    anchors = ids(pages["evidence"])
    lines = [line for line in evidence_lines(pages[name]) if "Evidence:" in line]
    rows = [entry for entry in ROWS[name] if entry["test"]]
    by_name = {entry["test"]: ledger.evidence_anchor(entry["test"]) for entry in rows}
    assert len(lines) == len(rows)
    for line in lines:
        links = re.findall(r'href="evidence\.html#([^"]+)"', line)
        assert links == [by_name[text(line).split(", ")[-1]]]
        assert links[0] in anchors


def test_every_test_is_shown_once_with_its_claims_and_its_source(pages):
    sections = pages["evidence"].split('<section id="evidence-')[1:]
    assert len(sections) == len(TESTS)
    for section, (test, claims) in zip(sections, TESTS.items(), strict=True):
        assert f"evidence-{section}".startswith(f'{ledger.evidence_anchor(test)}"')
        assert text(re.search(r"<h2>(.*?)<a ", section)[1]).endswith(test.split("::", 1)[1])
        assert re.findall(r'href="(?:claims|papers)\.html#ledger-(\w+)"', section) == [
            claim.lower() for claim in claims
        ]
        assert test in text(section)
        shown = text(re.search(r"<pre>(.*?)</pre>", section, re.DOTALL)[1])
        assert shown.strip("\n") == ledger.evidence_source(ROOT, test)
    for name, rows in ROWS.items():
        anchors = {anchor.removeprefix("ledger-") for anchor in ids(pages[name])}
        assert {entry["id"].lower() for entry in rows} <= anchors


# The functions and the directive, on a project of a few lines.

SOURCE = '''\
import pytest

SIZES = [1, 2]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.needs_models
def test_wet(size):
    """Rain is."""
    assert size

class TestSnow:
    def test_cold(self):
        assert True
# the end
'''

CLAIMS = """\
- {id: C01, note: [N0], section: structure, claim: It is wet., verdict: confirmed, reason: rain,
   scope: code,
   chapter: rain, cell: drop, test: "tests/test_rain.py::test_wet[2]"}
- {id: C02, note: [N0], section: structure, claim: It is cold., verdict: confirmed, reason: snow,
   scope: code,
   chapter: rain, cell: drop, test: "tests/test_rain.py::TestSnow::test_cold"}
- {id: C03, note: [N0], section: cost, claim: It stays wet., verdict: confirmed, reason: rain,
   scope: code,
   chapter: rain, cell: drop, test: "tests/test_rain.py::test_wet"}
- {id: C04, note: [N0], section: cost, claim: Nothing yet., verdict: open, chapter: rain}
"""

CONF = """\
extensions = ["myst_parser", "mha_book_claims", "mha_book_evidence"]
html_theme_options = {}
"""


@pytest.fixture
def project(tmp_path) -> Path:
    for name, content in {
        "tests/test_rain.py": SOURCE,
        "book/claims.yml": CLAIMS,
        "conf.py": CONF,
        "index.md": "# Rain\n\n```{toctree}\nclaims\nevidence\n```\n",
        "claims.md": "# Claims\n\n```{claims-ledger}\n```\n",
        "evidence.md": "# Tests\n\n```{claims-evidence}\n```\n\n```{evidence-shared}\n```\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf8")
    return tmp_path


def build(project: Path, **options) -> tuple[str, list[str]]:
    """Return the page of evidence as it is written, and the warnings that are about tests."""
    warnings = io.StringIO()
    app = Sphinx(
        project, project, project / "out", project / "trees", "xml", status=io.StringIO(),
        warning=warnings, confoverrides={"html_theme_options": options}, freshenv=True,
    )  # fmt: skip
    app.build()
    lines = [
        line for line in warnings.getvalue().splitlines() if re.search("evidence|the test", line)
    ]
    return (project / "out" / "evidence.xml").read_text(encoding="utf8"), lines


def test_a_page_of_tests(project):
    page, warnings = build(project)
    assert warnings == []
    assert re.findall(r'<section ids="([^"]+)"', page)[1:] == [
        "evidence-test_rain-test_wet",
        "evidence-test_rain-TestSnow-test_cold",
        "shared-tests-test-rain",
    ]
    assert "<title>C01, C03: test_wet</title>" in page
    assert 'refuri="https' not in page


@pytest.mark.parametrize(
    "old, new, problems",
    [
        ("test_wet(size)", "test_damp(size)", {"C01, C03 does not exist", "undefined label"}),
        ("test_rain.py::TestSnow::test_cold", "other/test_rain.py::test_wet", {"one anchor"}),
    ],
)
def test_a_dead_link_is_a_warning(project, old, new, problems):
    """And the book is built with warnings as errors."""
    (project / "tests" / "other").mkdir()
    (project / "tests" / "other" / "test_rain.py").write_text(SOURCE, encoding="utf8")
    for file in (project / "tests" / "test_rain.py", project / "book" / "claims.yml"):
        file.write_text(file.read_text(encoding="utf8").replace(old, new), encoding="utf8")
    _, warnings = build(project)
    for problem in problems:
        assert any(problem in line for line in warnings), warnings


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
