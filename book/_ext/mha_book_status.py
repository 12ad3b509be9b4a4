"""Pages that are templates: what they say of the book is counted from its sources at build time.

`status.md` and the front page are rendered by Jinja when they are read. What they can name is in
:func:`words`; ``read`` is what a file of the repository holds.
"""

import base64
import csv
import json
import re
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Template
from mha_book_claims import load, verdict_counts
from mha_book_equations import KINDS, add_directive, load_kinds, proved
from mha_book_ledger import CLAIMS, LEDGERS, load_ledger, read_pages
from mha_book_pages import loose_numbers, read_typed
from mha_book_pages import words as count_words
from mha_book_public import read_public
from mha_book_toc import read, toc_pages
from sphinx.util import logging

logger = logging.getLogger(__name__)

FILLED = ("book/index", "book/status")
INDEPENDENT = "book/data/independent.json"


@cache  # a build asks twice
def chapters(root: Path) -> list[tuple[str, int, int, int, int]]:
    """Return (page, code cells, exercises, claims, words) of every notebook."""
    rows = []
    stated = read_pages(root)
    for page in toc_pages(root):
        path = root / f"{page}.ipynb"
        if not path.exists():
            continue
        cells = read(path)["cells"]
        code = [c for c in cells if c["cell_type"] == "code"]
        exercises = sum("exercise" in c["metadata"].get("tags", ()) for c in code)
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        name = Path(page).name
        for number in loose_numbers(cells, read_typed(root).get(name, {})):
            what = f"{name}: {number} is typed: glue it, or say in book/typed.yml what it is"
            logger.warning(what, type="mha_book")
        rows.append((name, len(code), exercises, len(stated[name].claims), count_words(text)))
    return rows


def grounds(root: Path) -> Counter[str]:
    """Return what the verdicts of both ledgers rest on, and in how many rows."""
    counts: Counter[str] = Counter()
    for entry in (entry for each in LEDGERS for entry in load_ledger(root / each.file)):
        if entry["judged"]:
            texts = [part.text for part in entry["judged"]]
            by_value = any(part.value for part in entry["judged"])
            counts["a margin that was moved, with the reason"] += bool(entry["moved"])
            counts["judged, with its reason"] += any(text.startswith("open:") for text in texts)
            counts["numbers and their margins alone"] += all(p.value for p in entry["judged"])
            counts["both"] += by_value and bool({"yes", "no"} & {*texts})
            counts["what a test computes, exactly"] += {*texts} <= {"yes", "no"}
    return counts


def equations(root: Path) -> list[tuple[str, Counter[str]]]:
    """Return (page, its equations by kind, and how many are proved), and a last row for all."""
    kinds, theorems, rows = load_kinds(root), proved(root), []
    for name in (Path(page).name for page in toc_pages(root)):
        if labels := {label: entry["kind"] for label, entry in kinds.get(name, {}).items()}:
            held = ["proved"] * len(labels.keys() & theorems)
            rows.append((name, Counter([*labels.values(), *held])))
    return [*rows, ("all pages", sum((count for _, count in rows), Counter()))]


def count_tests(root: Path) -> int:
    """Return how many test functions there are; one that takes parameters counts once."""
    texts = (path.read_text(encoding="utf8") for path in (root / "tests").rglob("test_*.py"))
    return sum(len(re.findall(r"^ *(?:async )?def test_", text, re.M)) for text in texts)


def front(root: Path) -> dict[str, int]:
    """Return the counts of the front page: claims, equations, cells and tests."""
    compared = equations(root)[-1][1]
    return {
        "claims": len(load_ledger(root / CLAIMS.file)),
        "displayed": sum(compared[kind] for kind in KINDS),
        "executed": compared["executed"],
        "cells": sum(row[1] for row in chapters(root)),
        "tests": count_tests(root),
    }


def book_numbers(root: Path, place: str, at=None) -> np.ndarray:
    """Return numbers of the book, in one row, by their place: a file, ``#``, and what is in it.

    That is names and places in a result (``*`` is every one), the column of a table, or the cell of
    a notebook, whose numbers are those of its table or of what it printed. Of the explorer's files
    ``at`` says which bytes, by sentence; of all else, which numbers. ``#ranks`` at the end stands
    for the places that they have when they are sorted.
    """
    name, _, inside = place.partition("#")
    inside, _, as_ranks = inside.partition("#")
    if name.endswith(".js"):
        found = []
        for sentence, chosen in at.items():
            text = (root / name.replace("*", sentence)).read_text(encoding="utf8")
            maps = json.loads(text[text.index("{") : text.rindex("}") + 1])
            stored = np.frombuffer(base64.b64decode(maps["weights"]), np.uint8)
            found.append(stored[chosen] / 255)
        return np.concatenate(found)
    text = (root / name).read_text(encoding="utf8")
    if name.endswith(".csv"):
        found = np.array([float(row[inside]) for row in csv.DictReader(text.splitlines())])
    elif name.endswith(".ipynb"):
        (cell,) = (c for c in json.loads(text)["cells"] if c.get("id") == inside)
        found = np.array([float(x) for output in cell["outputs"] for x in _printed(output)])
    else:
        found = np.concatenate([np.ravel(x) for x in _inside(json.loads(text), inside.split("/"))])
    found = np.argsort(np.argsort(found, kind="stable")) if as_ranks else found
    return found if at is None else found[at]


def _inside(value, names):
    """Return what is at a path of names and places; ``*`` stands for every one."""
    if not names:
        return [value]
    if names[0] == "*":
        values = value.values() if isinstance(value, dict) else value
        return [found for each in values for found in _inside(each, names[1:])]
    return _inside(value[int(names[0]) if isinstance(value, list) else names[0]], names[1:])


def _printed(output):
    """Return the numbers of a table's right-hand cells, or those with a point in printed text."""
    if html := output.get("data", {}).get("text/html"):
        cells = re.findall(r'<td class="text-right">([^<]*)</td>', "".join(html))
        return [cell.replace(",", "") for cell in cells]
    return re.findall(r"-?\d+\.\d+", "".join(output.get("text", "")))


def independent(root: Path) -> list[list[str]]:
    """Return headline numbers, and what a second hand found for them."""
    rows = []
    for entry in read(root / INDEPENDENT)["rows"]:
        ours = book_numbers(root, entry["place"], entry.get("at"))
        theirs = np.array(entry["theirs"])
        far = abs(ours - theirs).max()
        numbers = (ours.mean(), theirs.mean(), far, entry["tolerance"])
        numbers = (f"{x:,.0f}" if x > 1e3 else f"{x:.4g}" for x in numbers)
        rows.append([entry["name"], entry["definition"], str(len(ours)), *numbers])
    return rows


def words(root: Path) -> dict[str, Any]:
    """Return what a page can name: values, and functions without arguments."""
    every = (chapters, front, grounds, independent, equations)
    return {
        "read": lambda name: read(root / name),
        "repository": read_public(root).repository,
        "minutes": lambda seconds: f"{seconds / 60:.0f} min",
        **{each.__name__: partial(each, root) for each in every},
    }


def _fill(app, docname: str, source: list[str]) -> None:
    if docname in FILLED:
        app.env.note_reread()  # it is about all pages, files and tests
        root = Path(app.srcdir)
        source[0] = Template(source[0], trim_blocks=False).render(words(root))


def verdicts_of(self):
    """``{claims-count}`` and ``{papers-count}``: the counts of the verdicts of a ledger."""
    (ledger,) = (each for each in LEDGERS if f"{each.name}-count" == self.name)
    return [verdict_counts(load(self.env, ledger), ledger)]


def setup(app):
    """Register the directives and the templates."""
    for ledger in LEDGERS:
        add_directive(app, f"{ledger.name}-count", verdicts_of)
    app.connect("source-read", _fill)
