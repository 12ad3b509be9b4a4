"""The pages of the first part keep their budget: words, cells, what is printed, screens."""

import json
from pathlib import Path

import nbformat
import pytest

from tests.book import gates
from tests.book.extensions import ROOT, pages

BUDGETED = pages.budgeted_pages(ROOT)


@pytest.mark.parametrize("page", BUDGETED)
def test_a_page_keeps_its_budget(page):
    assert pages.budget_problems(pages.count_page(ROOT / f"{page}.ipynb")) == []


# The counts, and the gate, on notebooks planted here.


def code(source: str, *tags: str, printed: str = ""):
    cell = nbformat.v4.new_code_cell(source, execution_count=1, metadata={"tags": [*tags]})
    if printed:
        cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=printed))
    return cell


def planted(folder: Path, *cells) -> pages.Counts:
    notebook = nbformat.v4.new_notebook()
    for cell in cells:
        if isinstance(cell, str):
            cell = nbformat.v4.new_markdown_cell(cell)
        notebook.cells.append(cell)
    path = folder / "page.ipynb"
    nbformat.write(notebook, path)
    return pages.count_page(path)


SET_UP = code("import jax", "hide-input")


@pytest.mark.parametrize(
    "cells, problem",
    [
        ((SET_UP, "rain " * 3001), "3001 words of prose"),
        ((SET_UP, code("f()", printed="rows sum to one: True\n")), "True or False"),
        ((SET_UP, code("f()", "hide-input", printed="[False]\n")), "True or False"),
        ((SET_UP, code("x = 1\n" * 26)), "has 26 lines, at most 25"),
        ((code("import jax"),), "not folded"),
        ((code("install()", "remove-cell"), code("import jax")), "not folded"),
    ],
)
def test_what_is_over_the_budget_is_found(tmp_path, cells, problem):
    found = pages.budget_problems(planted(tmp_path, *cells))
    assert len(found) == 1
    assert problem in found[0]


def test_what_is_folded_or_hidden_is_not_counted(tmp_path):
    counts = planted(
        tmp_path,
        SET_UP,
        "rain " * 3000,
        code("x = 1\n" * 25),
        code("y = 2\n" * 99, "hide-input"),
        code("solve()\n" * 99, "solution", "hide-cell", printed="passed: True\n"),
    )
    assert (counts.words, counts.longest, counts.booleans) == (3000, 25, 0)
    assert pages.budget_problems(counts) == []


@pytest.mark.parametrize(
    "text, words",
    [
        ("One two three.", 3),
        ("A formula $x + y$ is one word.", 6),
        ("$$ x = y $$ (label)", 0),
        ("```python\nx = 1\n```\nafter", 1),
        ("```{literalinclude} x.py\n:pyobject: f\n```", 0),
        (":::{claim} C16\n:::", 0),
        (":::{warning}\n:class: tip\nMind the gap.\n:::", 3),
        ("see {eq}`label` and {doc}`here <there>`", 4),
        ("it is {glue:text}`share` of all", 5),
        ("a [link with words](https://example.org)", 4),
        ("(target)=\n## Heading", 1),
        ("<!-- not read -->", 0),
        ("| a | b |\n|---|---|\n| 1 | 2 |", 4),
    ],
)
def test_words_are_those_that_are_read(tmp_path, text, words):
    assert planted(tmp_path, SET_UP, text).words == words


@pytest.mark.parametrize(
    "text, typed",
    [
        ("It is 0.96, where 12 of 40 hold.", ["0.96", "12", "40"]),
        ("It is {glue:text}`x` of $40$.", []),
        ("In 1790 and 2026", []),
        ("## Chapter 3\n\n1. first\n2. second", []),
        ("`x = 3`, C16 and head 16.0", ["16.0"]),
        ("They have 7.5 of it {cite}`x2020`. We have 8.", ["8"]),
    ],
)
def test_typed_numbers_are_found(text, typed):
    assert pages.typed_numbers(text) == typed


@pytest.mark.parametrize("page", gates.chapters(), ids=lambda path: path.stem)
def test_a_number_in_prose_comes_from_a_cell_or_is_on_the_list(page):
    listed = pages.read_typed(ROOT).get(page.stem, {})
    cells = json.loads(page.read_text(encoding="utf8"))["cells"]
    assert pages.loose_numbers(cells, listed) == []
    assert all(isinstance(reason, str) and reason for reason in listed.values())
    # None of the list is there for nothing.
    for number in listed:
        others = {n: why for n, why in listed.items() if n != number}
        assert pages.loose_numbers(cells, others), number


@pytest.mark.parametrize("number, is_loose", [("0.8", False), ("83.4%", False), ("0.7", True),
                                              ("4,000", False), ("4,001", True)])  # fmt: skip
def test_a_result_typed_into_prose_is_found(number, is_loose):
    output = {"output_type": "stream", "text": ["it is 0.834\n"]}
    cells = [
        {"cell_type": "markdown", "source": [f"It is {number}."]},
        {"cell_type": "code", "source": ["x = 4_000"], "outputs": [output]},
    ]
    assert bool(pages.loose_numbers(cells, {})) == is_loose
    assert pages.loose_numbers(cells, {float(number.strip("%").replace(",", "")): "why"}) == []
