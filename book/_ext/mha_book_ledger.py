"""The ledgers as data: reading ``book/claims.yml`` and ``book/papers.yml``, finding what is wrong.

Both have rows of one form, and a page of their name; what differs stands in :class:`Ledger`.
Nothing here needs Sphinx: the book's extension and the tests call the same functions.
"""

import ast
import json
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from mha_book_toc import toc_pages
from pybtex.database import parse_file

__all__ = [
    "CLAIMS",
    "LEDGERS",
    "PAPERS",
    "SCOPES",
    "VERDICTS",
    "Ledger",
    "Page",
    "Work",
    "entry_problems",
    "evidence_anchor",
    "evidence_source",
    "evidence_tests",
    "fill_numbers",
    "glued_values",
    "ledger_problems",
    "load_ledger",
    "read_pages",
    "read_works",
    "scope_kind",
    "stored_values",
    "typed_numbers",
]

VERDICTS = (
    "confirmed", "holds if", "corrected", "refuted", "undecided", "not tested", "open",
)  # fmt: skip
# What a verdict was reached on; a scope is one of these, a colon and what exactly.
SCOPES = ("algebra", "code", "published models", "trained models", "tiny models", "timings")
_OPTIONAL = (
    "scope", "condition", "reason", "measured", "decide", "chapter", "cell", "file", "test",
)  # fmt: skip
_TEXTS = ("condition", "reason", "measured")  # they take glued numbers
_BOX = re.compile(r"^:{3,}\{claim\}[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_GLUE = re.compile(r"\{glue:text\}`([^`]+)`")
_PREFIX = "application/papermill.record/"
# A number that is the outcome of something: with a decimal point or a power, in percent, or long.
_NUMBER = re.compile(
    r"(?<![\w.\-])(?:\d+\.\d+(?:e-?\d+)?|\d+e-?\d+|\d[\d,]*\d{2}|\d+(?=\s?(?:%|percent\b)))(?!\w)"
)
_SKIPS = {"skip", "skipif", "xfail", "importorskip"}


@dataclass(frozen=True)
class Ledger:
    """What one ledger asks of its rows.

    Attributes:
        name: of its file and of its page.
        letter: that its ids begin with.
        source: the field that says who makes the claim.
        sections: field ``section`` -> heading of the page.
        waiting: the verdict of a row that has no evidence; another of its rows needs ``needs``.
        needs: the fields of a row with evidence; one of those in a tuple is enough.
        waiting_needs: those of a row without.
        waiting_lacks: those that a row without must not have.
        only: fields of this ledger alone.
    """

    name: str
    letter: str
    source: str
    sections: dict[str, str]
    waiting: str
    needs: tuple[str | tuple[str, ...], ...]
    waiting_needs: tuple[str, ...]
    waiting_lacks: tuple[str, ...]
    only: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Return where its rows stand, below the root of the repository."""
        return f"book/{self.name}.yml"

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Return the verdicts that its rows can have."""
        return VERDICTS[: VERDICTS.index(self.waiting) + 1]


CLAIMS = Ledger(
    "claims", "C", "note",
    {
        "structure": "Structure and algebra",
        "interfaces": "Interfaces and code",
        "cost": "Cost, shapes and hardware",
        "learning": "Learning: specialization, pruning, grouping, dropout",
    },
    waiting="open",
    needs=("chapter", "scope", "reason", "cell", "test"),
    waiting_needs=("chapter",),
    waiting_lacks=("scope", "condition", "reason", "measured", "cell", "test"),
)  # fmt: skip
PAPERS = Ledger(
    "papers", "P", "paper",
    {
        "sharing": "Keys, values and what a cache holds",
        "layers": "Other forms of the layer",
        "sinks": "Sinks",
        "heads": "Which heads do what, and which are needed",
        "selection": "Reading fewer keys",
        "scores": "Scores, softmax and training",
        "positions": "Positions and length",
        "machines": "Machines",
    },
    waiting="not tested",
    needs=("scope", "reason", "measured", "test", ("cell", "file")),
    waiting_needs=("decide",),
    waiting_lacks=("condition", "measured", "cell", "file", "test"),
    only=("decide", "file"),
)  # fmt: skip
LEDGERS = (CLAIMS, PAPERS)


@dataclass(frozen=True)
class Work:
    """What a row shows of the paper that makes its claim."""

    title: str
    year: str
    address: str


@dataclass(frozen=True)
class Page:
    """What the ledger needs to know of a page: the cells it shows and the claims that it states."""

    cells: dict[str, str] = field(default_factory=dict)  # id of a code cell -> its source
    claims: tuple[str, ...] = ()


def load_ledger(path: Path) -> list[dict]:
    """Read a ledger, every optional field filled with the empty string."""
    entries = yaml.safe_load(path.read_text(encoding="utf8"))
    empty = dict.fromkeys(_OPTIONAL, "")
    return [{**empty, **{k: v for k, v in e.items() if v is not None}} for e in entries]


def read_works(root: Path) -> dict[str, Work]:
    """Return what the bibliography says of every work, by its key."""
    works = {}
    for key, entry in parse_file(str(root / "book" / "references.bib")).entries.items():
        doi = entry.fields.get("doi", "")
        address = entry.fields.get("url", doi and f"https://doi.org/{doi}")
        works[key] = Work(re.sub(r"[{}]", "", entry.fields["title"]), entry.fields["year"], address)
    return works


def scope_kind(entry: dict) -> str:
    """Return what a verdict was reached on, the first words of its scope."""
    return entry["scope"].partition(":")[0]


def entry_problems(entry: dict, ledger: Ledger = CLAIMS) -> list[str]:
    """Return what is wrong with one entry taken alone."""
    name, found = entry.get("id", "(no id)"), []
    others = {field for other in LEDGERS if other is not ledger for field in other.only}
    known = {"id", ledger.source, "section", "claim", "verdict", *_OPTIONAL} - others
    for key in sorted(key for key in set(entry) - known if entry[key]):
        found.append(f"{name}: unknown field {key}")
    verdict = entry.get("verdict")
    waiting = verdict == ledger.waiting
    for key in ("id", ledger.source, "section", "claim", "verdict"):
        if not entry.get(key):
            found.append(f"{name}: {key} is missing")
    if verdict not in ledger.verdicts:
        found.append(f"{name}: verdict {verdict!r} is none of {', '.join(ledger.verdicts)}")
    if entry.get("section") not in ledger.sections:
        known_sections = ", ".join(ledger.sections)
        found.append(f"{name}: section {entry.get('section')!r} is none of {known_sections}")
    if ledger is CLAIMS and not (
        isinstance(entry.get("note"), list) and set(entry["note"]) <= {f"N{n}" for n in range(5)}
    ):
        found.append(f"{name}: note must list some of N0 to N4")
    for keys in ledger.waiting_needs if waiting else ledger.needs:
        if not any(entry.get(key) for key in ([keys] if isinstance(keys, str) else keys)):
            missing = keys if isinstance(keys, str) else " or ".join(keys)
            found.append(f"{name}: {verdict}, without {missing}")
    if waiting:
        for key in ledger.waiting_lacks:
            if entry.get(key):
                found.append(f"{name}: {verdict}, yet has {key}")
    if entry.get("scope") and scope_kind(entry) not in SCOPES:
        found.append(f"{name}: the scope has to begin with one of {', '.join(SCOPES)}")
    if bool(entry.get("condition")) != (verdict == "holds if"):
        found.append(f"{name}: a condition belongs to the verdict 'holds if' and to no other")
    if entry.get("decide") and verdict not in ("undecided", "not tested"):
        found.append(f"{name}: {verdict}, yet says what would decide it")
    return found


def ledger_problems(
    entries: list[dict],
    ids: tuple[str, ...],
    pages: dict[str, Page],
    tests: dict[str, str],
    ledger: Ledger = CLAIMS,
) -> list[str]:
    """Return every problem of a ledger: entries, ids, links to chapters, cells and tests.

    Args:
        entries: the ledger, as :func:`load_ledger` returns it.
        ids: the ids that must be there, each once.
        pages: the pages of the book by short name, as :func:`read_pages` returns them.
        tests: name of every test -> why it may not run, as :func:`evidence_tests` returns them.
        ledger: which of the two it is; a chapter states every claim of the first that it decides,
            and those of the other where it serves the reader.

    Returns:
        One line a problem; empty if all is well.
    """
    found = [line for entry in entries for line in entry_problems(entry, ledger)]
    have = [entry.get("id") for entry in entries]
    found += [f"{i}: missing from the ledger" for i in ids if i not in have]
    found += [f"{i}: not a known id" for i in have if i not in ids]
    found += [f"{i}: appears twice" for i in sorted({i for i in have if have.count(i) > 1})]
    by_id = {entry.get("id"): entry for entry in entries}
    for entry in entries:
        if entry.get("verdict") == "open" or not entry.get("chapter"):
            continue
        name, chapter = entry["id"], entry["chapter"]
        if chapter not in pages:
            found.append(f"{name}: chapter {chapter} is not in _toc.yml")
            continue
        if ledger is CLAIMS and name not in pages[chapter].claims:
            found.append(f"{name}: {chapter} does not state it")
        if entry.get("cell") and entry["cell"] not in pages[chapter].cells:
            found.append(f"{name}: {chapter} has no code cell with the id {entry['cell']}")
    for entry in entries:
        test = entry.get("test", "").split("[")[0]
        if test and test not in tests:
            found.append(f"{entry['id']}: test {test} does not exist")
        elif test and tests[test]:
            found.append(f"{entry['id']}: test {test} may not run: {tests[test]}")
        if entry.get("cell") and not entry.get("chapter"):
            found.append(f"{entry['id']}: has a cell and no chapter")
    letters = {other.letter for other in LEDGERS if other is not ledger}
    for chapter, page in pages.items():
        stated = [name for name in page.claims if name[0] not in letters]
        for name in stated:
            entry = by_id.get(name)
            if entry is None:
                found.append(f"{chapter}: states the unknown claim {name}")
            elif entry.get("verdict") == "open":
                found.append(f"{chapter}: states the open claim {name}")
            elif entry.get("chapter") != chapter:
                found.append(f"{chapter}: states {name}, whose chapter is {entry.get('chapter')}")
        for name in sorted({b for b in stated if stated.count(b) > 1}):
            found.append(f"{chapter}: states {name} twice")
    return found


def read_pages(root: Path) -> dict[str, Page]:
    """Read every page of the book that exists: its code cells by id, and its claims."""
    pages = {}
    for name in toc_pages(root):
        notebook, text = root / f"{name}.ipynb", root / f"{name}.md"
        cells, markdown = {}, ""
        if notebook.exists():
            for cell in json.loads(notebook.read_text(encoding="utf8"))["cells"]:
                source = "".join(cell["source"])
                if cell["cell_type"] == "code":
                    cells[cell.get("id", "")] = source
                elif cell["cell_type"] == "markdown":
                    markdown += source + "\n\n"
        elif text.exists():
            markdown = text.read_text(encoding="utf8")
        pages[Path(name).name] = Page(cells, tuple(" ".join(_BOX.findall(markdown)).split()))
    return pages


def glued_values(notebook: Path) -> dict[str, str]:
    """Return what the cells of a notebook glued, by name, as it stands in the stored outputs."""
    values = {}
    for cell in json.loads(notebook.read_text(encoding="utf8"))["cells"]:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            text = output.get("data", {}).get(f"{_PREFIX}text/plain")
            if name and text is not None:
                values[name] = ast.literal_eval("".join(text))
    return values


def stored_values(file: Path) -> dict[str, str]:
    """Return what a stored result tells the ledger, by name: its block ``told``."""
    return json.loads(file.read_text(encoding="utf8"))["told"]


def typed_numbers(entry: dict) -> list[str]:
    """Return the numbers of an entry that no cell glued, apart from those that its claim has.

    A number counts with a decimal point, in percent or from three digits on, in the reason, the
    condition and the measured outcome.
    """
    of_claim = {n.replace(",", "") for n in _NUMBER.findall(entry["claim"])}
    of_claim |= {n.replace(",", "") for n in re.findall(r"\d[\d,.]*\d|\d", entry["claim"])}
    found = []
    for key in _TEXTS:
        for number in _NUMBER.findall(_GLUE.sub("", entry[key])):
            if number.replace(",", "") not in of_claim:
                found.append(f"{key}: {number}")
    return found


def fill_numbers(text: str, values: dict[str, str]) -> str:
    """Put the glued values where ``{glue:text}`name``` stands; KeyError for one that is missing."""
    return _GLUE.sub(lambda found: str(values[found[1]]), text)


def evidence_tests(root: Path) -> dict[str, str]:
    """Return the name of every test function -> why it may not run ('' if it runs).

    The ``needs_…`` markers of the suite skip only outside CI, and so do not count here; ``skip``,
    ``skipif``, ``xfail`` and a call of one of them, or of ``importorskip``, do.
    """
    tests = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf8"))
        module_marks = [n for n in tree.body if isinstance(n, ast.Assign | ast.Expr)]
        whole = _why_skipped(module_marks)
        for node, prefix in _test_functions(tree.body, ""):
            why = whole or _why_skipped([*node.decorator_list, *node.body])
            tests[f"{path.relative_to(root).as_posix()}::{prefix}{node.name}"] = why
    return tests


def evidence_anchor(test: str) -> str:
    """Return where the page of evidence has a test: ``evidence-<stem of its file>-<its name>``."""
    file, _, name = test.split("[")[0].partition("::")
    return f"evidence-{Path(file).stem}-{name.replace('::', '-')}"


def evidence_source(root: Path, test: str) -> str:
    """Return the text of a test with its decorators; '' if there is no such test."""
    file, _, name = test.split("[")[0].partition("::")
    if not (root / file).is_file():
        return ""
    text = (root / file).read_text(encoding="utf8")
    for node, prefix in _test_functions(ast.parse(text).body, ""):
        if f"{prefix}{node.name}" == name:
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            return textwrap.dedent("\n".join(text.split("\n")[first - 1 : node.end_lineno]))
    return ""


def _test_functions(body, prefix):
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, prefix
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _test_functions(node.body, f"{prefix}{node.name}::")


def _why_skipped(statements) -> str:
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and node.attr in _SKIPS:
                return f"{ast.unparse(node)} on line {node.lineno}"
    return ""
