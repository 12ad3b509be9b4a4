"""The claims ledger as data: reading ``book/claims.yml`` and finding what is wrong with it.

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

__all__ = [
    "SCOPES",
    "SECTIONS",
    "VERDICTS",
    "Page",
    "entry_problems",
    "evidence_anchor",
    "evidence_source",
    "evidence_tests",
    "fill_numbers",
    "glued_values",
    "ledger_problems",
    "load_ledger",
    "read_pages",
    "scope_kind",
    "typed_numbers",
]

SECTIONS = {
    "structure": "Structure and algebra",
    "interfaces": "Interfaces and code",
    "cost": "Cost, shapes and hardware",
    "learning": "Learning: specialization, pruning, grouping, dropout",
}
VERDICTS = (
    "confirmed", "holds if", "corrected", "refuted", "undecided", "not tested", "open",
)  # fmt: skip
# What a verdict was reached on; a scope is one of these, a colon and what exactly.
SCOPES = ("algebra", "code", "published models", "trained models", "tiny models", "timings")
_FIELDS = {
    "id", "note", "section", "claim", "verdict", "scope", "condition", "reason", "measured",
    "chapter", "cell", "test",
}  # fmt: skip
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
class Page:
    """What the ledger needs to know of a page: the cells it shows and the claims that it states."""

    cells: dict[str, str] = field(default_factory=dict)  # id of a code cell -> its source
    claims: tuple[str, ...] = ()


def load_ledger(path: Path) -> list[dict]:
    """Read the ledger, every optional field filled with the empty string."""
    entries = yaml.safe_load(path.read_text(encoding="utf8"))
    empty = dict.fromkeys(
        ("scope", "condition", "reason", "measured", "chapter", "cell", "test"), ""
    )
    return [{**empty, **{k: v for k, v in e.items() if v is not None}} for e in entries]


def scope_kind(entry: dict) -> str:
    """Return what a verdict was reached on, the first words of its scope."""
    return entry["scope"].partition(":")[0]


def entry_problems(entry: dict) -> list[str]:
    """Return what is wrong with one entry taken alone."""
    name, found = entry.get("id", "(no id)"), []
    for key in sorted(set(entry) - _FIELDS):
        found.append(f"{name}: unknown field {key}")
    for key in ("id", "note", "section", "claim", "verdict", "chapter"):
        if not entry.get(key):
            found.append(f"{name}: {key} is missing")
    if entry.get("verdict") not in VERDICTS:
        found.append(f"{name}: verdict {entry.get('verdict')!r} is none of {', '.join(VERDICTS)}")
    if entry.get("section") not in SECTIONS:
        found.append(f"{name}: section {entry.get('section')!r} is none of {', '.join(SECTIONS)}")
    if not isinstance(entry.get("note"), list) or not set(entry["note"]) <= {
        f"N{n}" for n in range(5)
    }:
        found.append(f"{name}: note must list some of N0 to N4")
    if entry.get("verdict") == "open":
        for key in ("scope", "condition", "reason", "measured", "cell", "test"):
            if entry.get(key):
                found.append(f"{name}: open, yet has {key}")
    else:
        for key in ("scope", "reason", "cell", "test"):
            if not entry.get(key):
                found.append(f"{name}: {entry.get('verdict')}, without {key}")
        if entry.get("scope") and scope_kind(entry) not in SCOPES:
            found.append(f"{name}: the scope has to begin with one of {', '.join(SCOPES)}")
    if bool(entry.get("condition")) != (entry.get("verdict") == "holds if"):
        found.append(f"{name}: a condition belongs to the verdict 'holds if' and to no other")
    return found


def ledger_problems(
    entries: list[dict], ids: tuple[str, ...], pages: dict[str, Page], tests: dict[str, str]
) -> list[str]:
    """Return every problem of the ledger: entries, ids, links to chapters, cells and tests.

    Args:
        entries: the ledger, as :func:`load_ledger` returns it.
        ids: the ids that must be there, each once.
        pages: the pages of the book by short name, as :func:`read_pages` returns them.
        tests: name of every test -> why it may not run, as :func:`evidence_tests` returns them.

    Returns:
        One line a problem; empty if all is well.
    """
    found = [line for entry in entries for line in entry_problems(entry)]
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
        if name not in pages[chapter].claims:
            found.append(f"{name}: {chapter} does not state it")
        if entry["cell"] and entry["cell"] not in pages[chapter].cells:
            found.append(f"{name}: {chapter} has no code cell with the id {entry['cell']}")
        test = entry["test"].split("[")[0]
        if test and test not in tests:
            found.append(f"{name}: test {test} does not exist")
        elif test and tests[test]:
            found.append(f"{name}: test {test} may not run: {tests[test]}")
    for chapter, page in pages.items():
        for name in page.claims:
            entry = by_id.get(name)
            if entry is None:
                found.append(f"{chapter}: states the unknown claim {name}")
            elif entry.get("verdict") == "open":
                found.append(f"{chapter}: states the open claim {name}")
            elif entry.get("chapter") != chapter:
                found.append(f"{chapter}: states {name}, whose chapter is {entry.get('chapter')}")
        for name in sorted({b for b in page.claims if page.claims.count(b) > 1}):
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
