"""The status page: what the book holds, counted from its sources at build time."""

import base64
import csv
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
from docutils import nodes
from docutils.statemachine import StringList
from mha_book_claims import load, refer, verdict_counts
from mha_book_equations import KINDS, add_directive, table
from mha_book_ledger import CLAIMS, LEDGERS, read_pages
from mha_book_pages import loose_numbers, read_typed, words
from mha_book_rigour import rigour_rows
from mha_book_toc import read, toc_pages
from sphinx.util import logging

logger = logging.getLogger(__name__)

INDEPENDENT, RESULTS = "book/data/independent.json", "benchmarks/results"
NOT_RECORDED = "not recorded"  # mha_book.storage.NOT_RECORDED


def chapter_rows(root: Path) -> list[tuple[str, ...]]:
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
        counts = (len(code), exercises, len(stated[name].claims), words(text))
        rows.append((name, *map(str, counts)))
    return rows


def verdicts_of(self):
    """``{claims-count}`` and ``{papers-count}``: the counts of the verdicts of a ledger."""
    (ledger,) = (each for each in LEDGERS if f"{each.name}-count" == self.name)
    return [verdict_counts(load(self.env, ledger), ledger)]


def grounds(self):
    """``{verdict-grounds}``: what the verdicts of both ledgers rest on."""
    counts = Counter()
    for entry in (entry for ledger in LEDGERS for entry in load(self.env, ledger)):
        if entry["judged"]:
            texts = [part.text for part in entry["judged"]]
            by_value = any(part.value for part in entry["judged"])
            counts["a margin that was moved, with the reason"] += bool(entry["moved"])
            counts["judged, with its reason"] += any(text.startswith("open:") for text in texts)
            counts["numbers and their margins alone"] += all(p.value for p in entry["judged"])
            counts["both"] += by_value and bool({"yes", "no"} & {*texts})
            counts["what a test computes, exactly"] += {*texts} <= {"yes", "no"}
    return [table(("verdict from", "rows"), [(k, str(v)) for k, v in counts.items()])]


def stored(self, name: str):
    """Return what a file of the repository holds, and note that the page depends on it."""
    path = Path(self.env.srcdir) / name
    self.env.note_dependency(str(path))
    return read(path)


def coverage(self):
    """``{coverage-table}``: how often intervals of 95% contain the mean, by simulation."""
    found = stored(self, "book/data/coverage.json")["inside"]
    methods = [*next(iter(next(iter(found.values())).values()))]
    rows = [
        (population, size, *(f"{100 * of_size[method]:.0f}%" for method in methods))
        for population, of_sizes in found.items()
        for size, of_size in of_sizes.items()
    ]
    return [table(("samples from", "how many", *methods), rows)]


def chapters(self):
    """``{chapter-table}``: the chapters and what each of them holds."""
    head = ("chapter", "code cells", "exercises", "claims", "words")
    rows = chapter_rows(Path(self.env.srcdir))
    return [table(head, [(refer(f"/book/{name}", "", "doc"), *rest) for name, *rest in rows])]


def count_tests(root: Path) -> int:
    """Return how many test functions there are; one that takes parameters counts once."""
    texts = (path.read_text(encoding="utf8") for path in (root / "tests").rglob("test_*.py"))
    return sum(len(re.findall(r"^ *(?:async )?def test_", text, re.M)) for text in texts)


def front_counts(root: Path) -> dict[str, int]:
    """Return the counts of the front page: equations, cells and tests."""
    compared = sum((count for _, count in rigour_rows(root)), Counter())
    return {
        "displayed": sum(compared[kind] for kind in KINDS),
        "executed": compared["executed"],
        "cells": sum(int(row[1]) for row in chapter_rows(root)),
        "tests": count_tests(root),
    }


def front(self):
    """``{front-counts}``: what is unique about the book, in three lines with live counts."""
    root = Path(self.env.srcdir)
    self.env.note_reread()  # the counts are of all pages and tests
    counts, entries = front_counts(root), load(self.env, CLAIMS)
    text = f"""\
- **{len(entries)} claims about heads, each with a verdict** and the test behind it. Others made
  these claims; where the evidence can't decide, the verdict says so.
- **{counts["executed"]} of {counts["displayed"]} displayed equations run.** A test takes each
  equation's text from the page, executes it and checks the result.
- **{counts["cells"]} code cells and {counts["tests"]} tests.** Every printed output on these
  pages is recomputed and checked, on trained models and real text.
"""
    box = nodes.container(classes=["front-counts"])
    self.state.nested_parse(StringList(text.splitlines(), "front"), 0, box)
    box.insert(1, verdict_counts(entries))
    return [box]


def provenance_counts(root: Path) -> tuple[int, int, int]:
    """Return how many stored files name their commit, ran with changes, or do not name it."""
    manifest = root / "book" / "data" / "manifest.json"
    paths = {*(root / "book" / "data").glob("*.json"), *(root / RESULTS).glob("*.json")}
    blocks = [*read(manifest).values()]
    for path in paths - {manifest}:
        blocks.append(read(path)["provenance"])
    commits = [block["git"]["commit"] != NOT_RECORDED for block in blocks]
    dirty = sum(block["git"]["dirty"] is True for block in blocks)
    return sum(commits), dirty, len(blocks) - sum(commits)


def provenance(self):
    """``{provenance-counts}``: what the stored files say of where they come from."""
    self.env.note_reread()
    known, dirty, unknown = provenance_counts(Path(self.env.srcdir))
    text = (
        f"Of the {known + unknown} stored files, {known} name the commit of the code that made "
        f"them ({dirty} of these ran while other tracked files were changed). The other {unknown} "
        f"are older than that rule: their commit is \u201c{NOT_RECORDED}\u201d, and they name "
        "the commit that added the file."
    )
    return [nodes.paragraph(text, text)]


def reruns(self):
    """``{reruns-table}``: the stored files whose numbers changed, and why."""
    changed = stored(self, "book/reruns.yml")
    rows = [(name, row["since"], row["why"]) for name, row in changed.items()]
    return [table(("file", "unchanged since commit", "why it changed"), rows)]


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


def independent(self):
    """``{independent-table}``: headline numbers, and what a second hand found for them."""
    root = Path(self.env.srcdir)
    self.env.note_reread()  # the numbers are of many files
    rows = []
    for entry in read(root / INDEPENDENT)["rows"]:
        ours = book_numbers(root, entry["place"], entry.get("at"))
        theirs = np.array(entry["theirs"])
        far = abs(ours - theirs).max()
        numbers = (ours.mean(), theirs.mean(), far, entry["tolerance"])
        numbers = (f"{x:,.0f}" if x > 1e3 else f"{x:.4g}" for x in numbers)
        rows.append((entry["name"], entry["definition"], str(len(ours)), *numbers))
    heads = ("measurement", "what it is", "numbers", "ours, mean", "theirs, mean")
    return [table((*heads, "largest difference", "tolerance"), rows)]


def setup(app):
    """Register the directives."""
    for ledger in LEDGERS:
        add_directive(app, f"{ledger.name}-count", verdicts_of)
    add_directive(app, "front-counts", front)
    add_directive(app, "verdict-grounds", grounds)
    add_directive(app, "coverage-table", coverage)
    add_directive(app, "chapter-table", chapters)
    add_directive(app, "independent-table", independent)
    add_directive(app, "provenance-counts", provenance)
    add_directive(app, "reruns-table", reruns)
