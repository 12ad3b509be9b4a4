"""The gates on a stored notebook: what each chapter has to satisfy before it is run."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4.rwbase

from tests.book.extensions import ROOT, toc

EXERCISES_AT_LEAST = 3
# nbval leaves a cell with one of these uncompared; no chapter may.
NBVAL_MARKS = (
    "NBVAL_IGNORE_OUTPUT",
    "NBVAL_SKIP",
    "NBVAL_RAISES_EXCEPTION",
    "PYTEST_VALIDATE_IGNORE_OUTPUT",
    "raises-exception",
)


def chapters(root: Path = ROOT) -> list[Path]:
    """The notebooks that _toc.yml lists, in its order."""
    return _notebooks(root, toc.toc_pages(root))


def reference(root: Path = ROOT) -> list[Path]:
    """The notebooks for looking things up, exercises or none: recipes, not the introduction."""
    parts = [part for part in toc.read_parts(root)[1:] if not part.is_numbered]
    return _notebooks(root, [page for part in parts for page in part.pages][1:] + ["book/recipes"])


def budgeted(root: Path = ROOT) -> list[str]:
    """The pages that keep the budget of words and screens: the introduction and every chapter."""
    _, opening, *parts = toc.read_parts(root)
    return [opening.pages[0], *(page for p in parts if p.is_numbered for page in p.pages)]


def _notebooks(root: Path, pages: list[str]) -> list[Path]:
    paths = (root / f"{page}.ipynb" for page in pages)
    return [path for path in paths if path.exists()]


def load(path: Path) -> nbformat.NotebookNode:
    """A notebook as it is stored: nbformat's own reader would fill in what is missing."""
    stored = nbformat.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return nbformat.v4.rwbase.rejoin_lines(stored)


def printed(cell: Any) -> str:
    """What a code cell printed on stdout."""
    streams = [out for out in cell.outputs if out.output_type == "stream"]
    return "".join(out.text for out in streams if out.name == "stdout")


def tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", []))


def execution_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Cells without a count, out of order, with an error, on stderr, or exempt from nbval."""
    problems = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, start=1):
        where = f"code cell {number}"
        if cell.execution_count != number:
            problems.append(f"{where}: execution count {cell.execution_count}, not {number}")
        if not cell.source.strip():
            problems.append(f"{where}: empty")
        for output in cell.outputs:
            if output.output_type == "error":
                problems.append(f"{where}: stores the error {output.ename}")
            if output.output_type == "stream" and output.name == "stderr":
                problems.append(f"{where}: stores output on stderr")
        for mark in NBVAL_MARKS:
            comment = any(
                line.strip().startswith("#") and line.strip().lstrip("#").strip() == mark
                for line in cell.source.splitlines()
            )
            if comment or {mark, mark.lower().replace("_", "-")} & {*tags(cell)}:
                problems.append(f"{where}: {mark} keeps nbval from comparing it")
    return problems


def id_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Cells without an id, or with one that another cell has."""
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        return ["the format is older than 4.5, which has no cell ids"]
    ids = [cell.get("id") for cell in notebook.cells]
    problems = [f"cell {number}: no id" for number, name in enumerate(ids, 1) if not name]
    problems += [f"id {name}: {n} cells" for name, n in Counter(ids).items() if name and n > 1]
    return problems


def exercise_problems(
    notebook: nbformat.NotebookNode, at_least: int = EXERCISES_AT_LEAST
) -> list[str]:
    """Fewer exercises than a chapter has, a stub that is attempted, a solution that fails."""
    problems = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    stubs = [number for number, cell in enumerate(code) if "exercise" in tags(cell)]
    solutions = [number for number, cell in enumerate(code) if "solution" in tags(cell)]
    if len(stubs) < at_least:
        problems.append(f"{len(stubs)} exercises, not at least {at_least}")
    if [number + 1 for number in stubs] != solutions:
        problems.append("each exercise cell has to be followed by its solution cell")
    for number in stubs:
        if not re.search(r"not\s+attempted", printed(code[number]).lower()):
            problems.append(f"code cell {number + 1}: the stub does not say that it waits")
    for number in solutions:
        if "passed" not in printed(code[number]).lower():
            problems.append(f"code cell {number + 1}: the solution does not say 'passed'")
        if "hide-cell" not in tags(code[number]):
            problems.append(f"code cell {number + 1}: the solution is not hidden")
    return problems
