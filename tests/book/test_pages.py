"""The pages of the first part keep their budget: words, cells, what is printed, screens."""

import importlib.util
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from tests.book.extensions import ROOT, pages

BUDGETED = pages.budgeted_pages(ROOT)


def tool(name: str) -> ModuleType:
    """A script of book/_tools, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "book" / "_tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", BUDGETED)
def test_a_page_keeps_its_budget(page):
    assert pages.budget_problems(pages.count_page(ROOT / f"{page}.ipynb")) == []


def test_the_introduction_and_every_chapter_have_a_budget(tmp_path):
    (tmp_path / "_toc.yml").write_text(
        "root: book/front\nparts:\n"
        "- {caption: Start here, chapters: [{file: book/start}]}\n"
        "- {caption: One layer, numbered: 1, chapters: [{file: book/rain}]}\n"
        "- {caption: Reference, chapters: [{file: book/words}]}\n"
    )
    assert pages.budgeted_pages(tmp_path) == ["book/start", "book/rain"]


@pytest.mark.needs_browser
@pytest.mark.parametrize("page", BUDGETED)
def test_a_page_has_few_screens(built_book, page):
    heights = tool("pages").screens(built_book, [page])
    assert 1 < heights[page] <= pages.BUDGET.screens


# The counts, and the gate, on notebooks planted here.


def code(source: str, *tags: str, printed: str = "", picture: bool = False):
    cell = nbformat.v4.new_code_cell(source, execution_count=1, metadata={"tags": [*tags]})
    if printed:
        cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=printed))
    if picture:
        data = {"image/png": "", "text/plain": "<Figure>"}
        cell.outputs.append(nbformat.v4.new_output("display_data", data=data))
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


def test_a_small_page_keeps_the_budget(tmp_path):
    counts = planted(
        tmp_path, SET_UP, "# Rain\n\nIt falls.", code("rain()", printed="3 mm\nTrue north: 4\n")
    )
    assert counts.printed == 2
    assert pages.budget_problems(counts) == []


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
        code("plot()", "remove-cell", picture=True),
        code("plot()", "hide-input", picture=True),
    )
    assert (counts.words, counts.open_lines, counts.longest) == (3000, 25, 25)
    assert (counts.printed, counts.booleans, counts.figures) == (0, 0, 1)
    assert pages.budget_problems(counts) == []


@pytest.mark.parametrize(
    "line, boolean",
    [
        ("equal: True", True), ("True", True), ("[True, False]", True), ("a = False.", True),
        ("max difference 0.000", False), ("Trueblood", False), ("True means: attend", False),
        ("share of True: 0.25", False), ("", False),
    ],
)  # fmt: skip
def test_a_boolean_line_ends_in_a_truth_value(line, boolean):
    assert pages.is_boolean(line) is boolean


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
        ("It is 0.96, where 12 of 40 hold.", 3),
        ("It is {glue:text}`x` of $40$.", 0),
        ("In 1790 and 2026", 0),
        ("## Chapter 3\n\n1. first\n2. second", 0),
        ("`x = 3`, C16 and head 16.0", 1),
    ],
)
def test_typed_numbers_are_found(text, typed):
    assert pages.typed_numbers(text) == typed


def test_a_missing_browser_leaves_the_column_empty(tmp_path, monkeypatch):
    module = tool("pages")
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "page.html").write_text("<article>x</article>")
    heights = module.screens(tmp_path, ["page"])
    assert heights == {}
    rows = {"page": planted(tmp_path, SET_UP, "one two")}
    head, line = module.table(rows, heights).splitlines()
    assert head.split()[:3] == ["page", "words", "screens"]
    assert line.split()[:3] == ["page", "2", "0"]  # no height between words and figures


@pytest.mark.needs_browser
def test_a_height_is_that_of_the_article(tmp_path, needs_browser):
    (tmp_path / "page.html").write_text(
        "<!doctype html><nav style='height:9000px'></nav>"
        "<article style='height:2250px'><details><p style='height:9000px'></details></article>"
    )
    assert tool("pages").screens(tmp_path, ["page"]) == {"page": 2.5}
