"""The gates on a stored notebook: what each chapter has to satisfy before it is run."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4.rwbase
import yaml

ROOT = Path(__file__).parents[2]
EXERCISES_AT_LEAST = 3
# nbval leaves a cell with one of these uncompared; no chapter may.
NBVAL_MARKS = (
    "NBVAL_IGNORE_OUTPUT",
    "NBVAL_SKIP",
    "NBVAL_RAISES_EXCEPTION",
    "PYTEST_VALIDATE_IGNORE_OUTPUT",
    "raises-exception",
)


def listed(node: Any) -> list[str]:
    """Every document that a table of contents names, in its order."""
    if isinstance(node, list):
        return [name for entry in node for name in listed(entry)]
    if isinstance(node, dict):
        own = [node[key] for key in ("root", "file") if key in node]
        below = [listed(node[key]) for key in ("parts", "chapters", "sections") if key in node]
        return own + [name for names in below for name in names]
    return []


def chapters(root: Path = ROOT) -> list[Path]:
    """The notebooks that _toc.yml lists, in its order."""
    toc = root / "_toc.yml"
    if not toc.exists():
        return []
    names = listed(yaml.safe_load(toc.read_text(encoding="utf-8")))
    paths = [root / name for name in names]
    paths = [path if path.suffix == ".ipynb" else Path(f"{path}.ipynb") for path in paths]
    return [path for path in paths if path.exists()]


def reference(root: Path = ROOT) -> list[Path]:
    """The notebooks of the parts without numbers behind the chapters: for looking things up."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    every = toc.get("parts", ())
    first = next(n for n, part in enumerate(every) if part.get("numbered"))
    parts = [part for part in every[first:] if not part.get("numbered")]
    paths = [Path(f"{(root / name).with_suffix('')}.ipynb") for name in listed(parts)]
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
        if "not attempted" not in printed(code[number]).lower():
            problems.append(f"code cell {number + 1}: the stub does not say 'not attempted'")
    for number in solutions:
        if "passed" not in printed(code[number]).lower():
            problems.append(f"code cell {number + 1}: the solution does not say 'passed'")
        if "hide-cell" not in tags(code[number]):
            problems.append(f"code cell {number + 1}: the solution is not hidden")
    return problems
