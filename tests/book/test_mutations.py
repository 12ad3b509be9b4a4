"""The gates bite: what has to fail does fail, and the unaltered copy passes.

Each check runs pytest in a process of its own on a copy of the book in a temporary folder, so
that it goes through the same configuration, plugins and kernels as the run that it vouches for.
"""

import copy
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from tests.book import gates

CHAPTERS = gates.chapters()
GATE = "tests/book/test_notebooks.py"
DIGIT = re.compile(r"\d|True|False")


def copy_of_the_book(target: Path, chapter: Path, notebook: nbformat.NotebookNode) -> Path:
    """Copy the sources and tests, with the given notebook as the one chapter; its new path."""
    ignore = shutil.ignore_patterns("*.ipynb", "__pycache__", ".ipynb_checkpoints", "_static")
    for folder in ("src", "tests", "book", "benchmarks"):
        shutil.copytree(gates.ROOT / folder, target / folder, ignore=ignore)
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(gates.ROOT / name, target / name)
    (target / "_toc.yml").write_text(f"format: jb-book\nroot: book/{chapter.stem}\n")
    path = target / "book" / chapter.name
    nbformat.write(notebook, path)
    return path


def run_pytest(root: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the copy's pytest against the copy's package."""
    command = [sys.executable, "-m", "pytest", "--nbval", "-n0", "-x", "-q", "--color=no"]
    command += ["-p", "no:cacheprovider", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=root, env=environment, text=True, capture_output=True, check=False
    )


def cut(notebook: nbformat.NotebookNode, code_cells: int) -> nbformat.NotebookNode:
    """The notebook up to its n-th code cell, so that a check takes seconds."""
    short = copy.deepcopy(notebook)
    kept, seen = [], 0
    for cell in short.cells:
        if seen == code_cells:
            break
        kept.append(cell)
        seen += cell.cell_type == "code"
    short.cells = kept
    return short


def first_printed(notebook: nbformat.NotebookNode) -> int | None:
    """The number of the first code cell that prints a digit or a truth value."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = (number for number, cell in enumerate(code, 1) if DIGIT.search(gates.printed(cell)))
    return next(found, None)


@pytest.fixture(scope="module")
def shortest() -> tuple[Path, nbformat.NotebookNode]:
    """The chapter whose first printed value comes soonest, cut there."""
    candidates = [(path, gates.load(path)) for path in CHAPTERS]
    lengths = [(first_printed(notebook), path, notebook) for path, notebook in candidates]
    reached = [entry for entry in lengths if entry[0] is not None]
    assert reached, "no chapter prints a value"
    number, path, notebook = min(reached, key=lambda entry: (entry[0], entry[1]))
    assert number is not None
    return path, cut(notebook, number)


def alter_output(notebook: nbformat.NotebookNode) -> None:
    """Change one printed digit or truth value of the last code cell."""
    cell = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    output = next(out for out in cell.outputs if DIGIT.search(out.get("text", "")))
    other = {"True": "False", "False": "True"}

    def swap(match: re.Match[str]) -> str:
        return other.get(match[0]) or str((int(match[0]) + 1) % 10)

    output.text = DIGIT.sub(swap, output.text, count=1)


@pytest.mark.slow
def test_altered_output_fails(tmp_path: Path, shortest: tuple[Path, nbformat.NotebookNode]) -> None:
    chapter, notebook = shortest
    altered = copy.deepcopy(notebook)
    alter_output(altered)
    result = run_pytest(tmp_path, copy_of_the_book(tmp_path, chapter, altered))
    assert result.returncode == 1, result.stdout
    assert "Cell outputs differ" in result.stdout


def trial_notebook() -> nbformat.NotebookNode:
    """Three exercises that satisfy every gate."""
    notebook = nbformat.v4.new_notebook()
    for number in range(1, 7):
        solution = number % 2 == 0
        cell = nbformat.v4.new_code_cell(f"f({number})", execution_count=number)
        cell.id = f"cell-{number}"
        cell.metadata["tags"] = ["solution", "hide-cell"] if solution else ["exercise"]
        text = "passed\n" if solution else "not attempted\n"
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        notebook.cells.append(cell)
    return notebook


def _set(place: int, **values: object) -> Callable[[list[nbformat.NotebookNode]], None]:
    """What gives one cell other values."""
    return lambda cells: cells[place].update(values)


def _says(place: int, text: str) -> Callable[[list[nbformat.NotebookNode]], None]:
    return lambda cells: cells[place].outputs[0].update(text=text)


FAILED = nbformat.v4.new_output("error", ename="ValueError")
WARNED = nbformat.v4.new_output("stream", name="stderr", text="a warning")


@pytest.mark.parametrize(
    "gate, mutation",
    [
        (gates.execution_problems, _set(0, execution_count=None)),
        (gates.execution_problems, _set(0, execution_count=2)),
        (gates.execution_problems, _set(0, outputs=[FAILED])),
        (gates.execution_problems, _set(0, outputs=[WARNED])),
        (gates.execution_problems, _set(0, source="# NBVAL_IGNORE_OUTPUT\n1")),
        (gates.execution_problems, _set(0, metadata={"tags": ["nbval-skip"]})),
        (gates.id_problems, lambda cells: cells[0].pop("id")),
        (gates.id_problems, _set(1, id="cell-1")),
        (gates.exercise_problems, _says(0, "passed\n")),
        (gates.exercise_problems, _says(1, "not yet: expected 2, got 3\n")),
        (gates.exercise_problems, _set(1, metadata={"tags": []})),
    ],
)
def test_gates_catch(
    gate: Callable[[nbformat.NotebookNode], list[str]],
    mutation: Callable[[list[nbformat.NotebookNode]], object],
) -> None:
    notebook = trial_notebook()
    assert gate(notebook) == []
    mutation(notebook.cells)
    assert gate(notebook)
