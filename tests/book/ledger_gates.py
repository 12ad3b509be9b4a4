"""What can be wrong with a ledger: entries, ids, numbers that were typed, links to evidence."""

import ast
import re
from pathlib import Path

from jsonschema import Draft202012Validator

from tests.book.extensions import ledger as book
from tests.book.extensions import toc

CLAIMS, LEDGERS, Ledger, Page = book.CLAIMS, book.LEDGERS, book.Ledger, book.Page
SCHEMAS = toc.read(Path(__file__).with_name("ledger.yml"))
for _each in LEDGERS:
    _known = {"section": {"enum": [*_each.sections]}, "verdict": {"enum": [*_each.verdicts]}}
    SCHEMAS[_each.name]["properties"] |= _known

# A number that is the outcome of something: with a decimal point or a power, in percent, or long.
_NUMBER = re.compile(
    r"(?<![\w.\-])(?:\d+\.\d+(?:e-?\d+)?|\d+e-?\d+|\d[\d,]*\d{2}|\d+(?=\s?(?:%|percent\b)))(?!\w)"
)
_SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def entry_problems(entry: dict, ledger: Ledger = CLAIMS) -> list[str]:
    """Return what is wrong with one entry taken alone."""
    row = {key: value for key, value in entry.items() if value not in ("", [])}
    problems = Draft202012Validator(SCHEMAS[ledger.name]).iter_errors(row)
    name = entry.get("id") or "(no id)"
    return [f"{name}: {'/'.join(map(str, each.path))} {each.message}" for each in problems]


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


def typed_numbers(entry: dict) -> list[str]:
    """Return the numbers of an entry that no cell glued, apart from those that its claim has.

    A number counts with a decimal point, in percent or from three digits on, in the reason, the
    condition and the measured outcome.
    """
    of_claim = {n.replace(",", "") for n in _NUMBER.findall(entry["claim"])}
    of_claim |= {n.replace(",", "") for n in re.findall(r"\d[\d,.]*\d|\d", entry["claim"])}
    found = []
    for key in book.TEXTS:
        for number in _NUMBER.findall(book.GLUE.sub("", entry.get(key, ""))):
            if number.replace(",", "") not in of_claim:
                found.append(f"{key}: {number}")
    return found


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
        for node, prefix in _test_functions(tree.body):
            why = whole or _why_skipped([*node.decorator_list, *node.body])
            tests[f"{path.relative_to(root).as_posix()}::{prefix}{node.name}"] = why
    return tests


def _test_functions(body, prefix=""):
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
