"""The gates bite: what has to fail does fail, and the unaltered notebook passes.

That nbval notices a changed digit is a planted defect (tests/defects/book.yml).
"""

from collections.abc import Callable

import nbformat
import pytest

from tests.book import gates


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
