"""The pages of the first part keep their budget: words, cells, what is printed, screens."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.book import gates
from tests.book.extensions import ROOT, pages, toc
from tests.turns import known_pages

WORDS = 3000
OPEN_LINES = 25  # of one cell; what has to be longer is folded or is a file of the package
_BOOLEAN = re.compile(r"(?:^|[\s:=(\[,])(?:True|False)[\s.,;)\]]*$")


def budget_problems(path: Path) -> list[str]:
    """In what a notebook is over its budget; one line each."""
    cells = gates.load(path).cells
    words = pages.words("\n\n".join(c.source for c in cells if c.cell_type == "markdown"))
    code = [cell for cell in cells if cell.cell_type == "code"]
    is_open = [not any(x.startswith(("hide-", "remove-")) for x in gates.tags(c)) for c in code]
    shown = [cell for cell, is_one in zip(code, is_open, strict=True) if is_one]
    lengths = {cell.id: sum(map(bool, cell.source.split("\n"))) for cell in shown}
    longest = max(lengths, key=lambda name: lengths[name], default="")
    said = "\n".join(printed(cell) for cell in code)
    booleans = sum(bool(_BOOLEAN.search(line)) for line in said.splitlines())
    pairs = zip(code, is_open, strict=True)
    is_set_up_open = next((o for cell, o in pairs if "remove-cell" not in gates.tags(cell)), False)
    problems = {
        f"{words} words of prose, at most {WORDS}": words > WORDS,
        f"{booleans} printed lines are True or False: print what teaches": booleans,
        f"the open cell {longest} has {lengths.get(longest, 0)} lines, at most {OPEN_LINES}":
            lengths.get(longest, 0) > OPEN_LINES,
        "the first code cell, the set-up, is not folded (tag it hide-input)": is_set_up_open,
    }  # fmt: skip
    return [problem for problem, is_one in problems.items() if is_one]


def printed(cell) -> str:
    """What a cell prints in sight, or gives as its value."""
    if {"hide-output", "hide-cell", "remove-output", "remove-cell"} & {*gates.tags(cell)}:
        return ""
    results = (out.data for out in cell.outputs if out.output_type == "execute_result")
    texts = (x.get("text/plain", "") for x in results if not any("image/" in kind for kind in x))
    return "\n".join([gates.printed(cell), *texts])


@pytest.mark.parametrize("page", gates.budgeted())
def test_a_page_keeps_its_budget(page):
    assert budget_problems(ROOT / f"{page}.ipynb") == []


@pytest.mark.parametrize(
    "text, words",
    [
        ("One two three.", 3), ("A formula $x + y$ is one word.", 6), ("$$ x = y $$ (label)", 0),
        ("```python\nx = 1\n```\nafter", 1), ("```{literalinclude} x.py\n:pyobject: f\n```", 0),
        (":::{claim} C16\n:::", 0), (":::{warning}\n:class: tip\nMind the gap.\n:::", 3),
        ("see {eq}`label` and {doc}`here <there>`", 4), ("it is {glue:text}`share` of all", 5),
        ("a [link with words](https://example.org)", 4), ("(target)=\n## Heading", 1),
        ("<!-- not read -->", 0), ("| a | b |\n|---|---|\n| 1 | 2 |", 4),
    ],
)  # fmt: skip
def test_words_are_those_that_are_read(text, words):
    assert pages.words(text) == words


@pytest.mark.parametrize(
    "text, typed",
    [
        ("It is 0.96, where 12 of 40 hold.", ["0.96", "12", "40"]),
        ("It is {glue:text}`x` of $40$.", []), ("In 1790 and 2026, Forty of them", ["40"]),
        ("## Chapter 3\n\n1. first\n2. second", []), ("`x = 3`, C16 and head 16.0", ["16.0"]),
        ("They have 7.5 of it {cite}`x2020`. We have 8.", ["8"]),
    ],
)  # fmt: skip
def test_typed_numbers_are_found(text, typed):
    assert pages.typed_numbers(text) == typed


TEXTS = [path for page in toc.toc_pages(ROOT) if (path := ROOT / f"{page}.md").exists()]


@pytest.mark.parametrize("page", [*gates.chapters(), *TEXTS], ids=lambda path: path.stem)
def test_a_number_in_prose_comes_from_a_cell_or_is_on_the_list(page):
    listed = pages.read_typed(ROOT).get(page.stem, {})
    text = page.read_text(encoding="utf8")
    is_text = page.suffix == ".md"
    cells = [{"cell_type": "markdown", "source": text}] if is_text else json.loads(text)["cells"]
    assert pages.loose_numbers(cells, listed) == []
    assert all(isinstance(reason, str) and reason for reason in listed.values())
    # None of the list is there for nothing.
    for number in listed:
        others = {n: why for n, why in listed.items() if n != number}
        assert pages.loose_numbers(cells, others), number


LISTED = pages.read_typed(ROOT)
NOW = {path.stem: path.read_text(encoding="utf8") for path in gates.chapters()}
_GLUED = re.compile(r'record/text/plain": "(.*)"\n(?:.*\n){4}.*"name": "(.*)"')


def glued(notebooks):
    """The numbers of what cells glued, by its name."""
    pairs = _GLUED.findall("\n".join(notebooks).replace(",", ""))
    return {name: [*map(float, re.findall(r"[-+]?\d+(?:\.\d+)?", x))] for x, name in pairs}


def test_what_a_cell_glued_once_it_glues_again():
    """Rounded otherwise, in percent or with less beside it; or it is on the list."""
    then, now = glued(known_pages().values()), glued(NOW.values())
    told = {name: np.outer([1, 100, 0.01], then[name]) for name in then.keys() & now}
    far = {n for n in told if not all(np.isclose(x, told[n], 0.01).any() for x in now[n])}
    assert far <= {*LISTED["glued"]}
    assert len(now) > 1000


@pytest.mark.parametrize("number, is_loose", [("0.8", False), ("83.4%", False), ("0.7", True),
                                              ("4,000", False), ("4,001", True)])  # fmt: skip
@pytest.mark.parametrize("prose, caption", [("It is {}.", ""), ("", "It is {}.")])
def test_a_result_typed_into_prose_is_found(number, is_loose, prose, caption):
    cells = [
        {"cell_type": "markdown", "source": [prose.format(number)]},
        {"cell_type": "code", "source": ["x = 4_000"],
         "outputs": [{"output_type": "stream", "text": ["it is 0.834\n"]}],
         "metadata": {"mystnb": {"figure": {"caption": caption.format(number)}}}},
    ]  # fmt: skip
    assert bool(pages.loose_numbers(cells, {})) == is_loose
    assert pages.loose_numbers(cells, {float(number.strip("%").replace(",", "")): "why"}) == []
