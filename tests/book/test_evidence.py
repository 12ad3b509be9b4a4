"""The page of evidence has every test that a claim names, and nothing leads to a place made up."""

import html
import io
import json
import re
from pathlib import Path

import pytest
from sphinx.application import Sphinx

from tests.book.extensions import ROOT, evidence, ledger, toc

ROWS = {each.name: ledger.load_ledger(ROOT / each.file) for each in ledger.LEDGERS}
ENTRIES = [entry for rows in ROWS.values() for entry in rows if entry["test"]]
WORKS = ledger.read_works(ROOT)
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


def test_every_link_to_the_page_has_its_anchor(pages):
    anchors = ids(pages["evidence"])
    for name, page in pages.items():
        for found in re.findall(r'href="(?:evidence\.html)?#(evidence-[^"]+)"', page):
            assert found in anchors, name
    for entry in ROWS["claims"]:
        line = f'<div class="claim claim-line [^"]*" id="claim-{entry["id"].lower()}"'
        assert len(re.findall(line, pages[entry["chapter"]])) == 1


def test_every_badge_of_a_claim_has_its_verdict_and_its_scope(pages):
    places = [
        (entry, name, f"ledger-{entry['id'].lower()}")
        for name, rows in ROWS.items()
        for entry in rows
    ]
    lines = [(entry, entry["chapter"], f"claim-{entry['id'].lower()}") for entry in ROWS["claims"]]
    for entry, page, anchor in places + lines:
        if entry["scope"]:
            start = pages[page].index(f'id="{anchor}"')
            badge = re.search(
                r'<span class="verdict claim-(\S+)">(.*?)</span></span>',
                pages[page][start:],
                re.DOTALL,
            )
            assert badge[1] == entry["verdict"].replace(" ", "-")
            words = " ".join(text(badge[2]).split())
            assert words == f"{entry['verdict']} {entry['scope']}"


@pytest.mark.parametrize("name", ROWS)
def test_the_filters_have_every_claim_and_are_no_condition_for_reading(pages, name):
    page = pages[name]
    rows = json.loads(html.unescape(re.search(r'data-rows="([^"]+)"', page)[1]))
    assert rows.keys() == {f"ledger-{entry['id'].lower()}" for entry in ROWS[name]}
    assert rows.keys() <= ids(page)
    parts = toc.part_of(ROOT)
    for entry in ROWS[name]:
        row = rows[f"ledger-{entry['id'].lower()}"]
        assert row["verdict"] == entry["verdict"]
        assert entry["scope"].partition(": ")[0] == row["scope"]
        if "paper" in entry:
            assert row["year"] == WORKS[entry["paper"]].year
        else:
            assert row["part"] == parts[entry["chapter"]]
    assert "claims.js" in page
    assert not re.search(r'class="[^"]*claim-card[^"]*"[^>]*\shidden', page)


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


def test_what_tests_share_is_shown_where_they_say(pages):
    found = dict(re.findall(
        r'<section id="(shared-[^"]+)">.*?<pre>(.*?)</pre>', pages["evidence"], re.DOTALL
    ))  # fmt: skip
    links = re.findall(r'href="#(shared-[^"]+)"', pages["evidence"])
    assert set(links) <= found.keys()
    assert "shared-tests-oracles" in found, "a file that tests import"
    shown = "".join(map(text, found.values()))
    assert not re.search(r"^def test_", shown, re.M)
    for test in TESTS:
        for line in (ROOT / test.split("::")[0]).read_text(encoding="utf8").splitlines():
            if re.match(r"from |import |def (?!test_)|[A-Z_]+ = ", line):
                assert line in shown, (test, line)


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


def test_the_source_of_a_test_has_its_decorators_and_nothing_else(project):
    wet = ledger.evidence_source(project, "tests/test_rain.py::test_wet[1]")
    assert wet == SOURCE[SOURCE.index("@pytest") : SOURCE.index("\n\nclass")]
    cold = ledger.evidence_source(project, "tests/test_rain.py::TestSnow::test_cold")
    assert cold == "def test_cold(self):\n    assert True"
    for none in ("tests/test_rain.py::test_dry", "tests/test_hail.py::test_wet"):
        assert ledger.evidence_source(project, none) == ""


def test_a_file_without_its_tests():
    assert evidence.without_tests(SOURCE) == "import pytest\n\nSIZES = [1, 2]\n# the end\n"


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


def test_a_configured_repository_has_the_file(project):
    page, _ = build(project, repository_url="https://example.org/a/b/")
    assert page.count('refuri="https://example.org/a/b/blob/main/tests/test_rain.py"') == 2


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
LEFT_OUT = {".git", "_build", "dist", "shared", "__pycache__", "node_modules"}


def files(folder: Path) -> list[Path]:
    """Every file of the project as committed, as far as names tell."""
    out = []
    for path in sorted(folder.iterdir()):
        built = path.name in LEFT_OUT or re.match(r"\.(venv|\w+_cache$|hypothesis)", path.name)
        if path.is_dir() and not built:
            out += files(path)
        elif path.is_file() and path.name != ".git":
            out.append(path)
    return out


def test_no_file_names_an_address_that_was_made_up():
    found = []
    for path in files(ROOT):
        match = MADE_UP.search(path.read_text(encoding="utf8", errors="ignore"))
        if match:
            found.append(f"{path.relative_to(ROOT)}: {match[0]}")
    assert found == []


@pytest.mark.parametrize(
    "address",
    [
        "https://{}.github.io/{}/", "https://github.com/{}/x", "https://mybinder.org/v2/gh/{}/x/main",
        "https://colab.research.google.com/github/{}/x", "git@github.com:{}/x.git",
    ],
)  # fmt: skip
def test_the_search_for_addresses_finds_them(address):
    assert MADE_UP.search(address.replace("{}", NAME))
    assert not MADE_UP.search(f'"schema": "{NAME}/benchmark", https://github.com/jax-ml/jax')
