"""The cells of a chapter: their anchors, and one fold for what the text can do without.

Each code cell has the anchor ``cell-<its id>``. Of a folded one (``hide-input``) the HTML shows
the output alone, with a quiet link to its code; the code of all of them, and the solutions of the
exercises (``hide-cell``), are in one fold at the end of the page, which a browser opens for a link
that leads into it. What the cell of an exercise printed is not shown.
"""

from collections import Counter
from pathlib import Path

from docutils import nodes
from mha_book_claims import cell_label
from mha_book_finding import EXERCISE
from mha_book_toc import read

_SEEN = (
    nodes.literal_block, nodes.image, nodes.raw, nodes.paragraph, nodes.table, nodes.math_block,
)  # fmt: skip


def common_prefix(ids: list[str]) -> str:
    """Return what most ids of a notebook begin with, up to the first hyphen, or nothing."""
    words = Counter(name.split("-")[0] for name in ids if "-" in name)
    word, count = max(words.items(), key=lambda pair: pair[1], default=("", 0))
    return f"{word}-" if 2 * count > len(ids) else ""


def _cells(doctree: nodes.document) -> list[nodes.container]:
    found = doctree.findall(nodes.container)
    return [node for node in found if node.get("nb_element") == "cell_code"]


def _read(app, doctree) -> None:
    """Put a target before each code cell, which links can name; keep MyST from folding it."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    stored = read(path)["cells"]
    prefix = common_prefix([cell["id"] for cell in stored if cell["cell_type"] == "code"])
    domain = app.env.get_domain("std")
    for cell in _cells(doctree):
        cell_id = stored[cell["cell_index"]]["id"]
        cell["folded"] = cell.attributes.pop("hide_mode", "")
        cell["title"] = cell_id.removeprefix(prefix).replace("-", " ")
        anchor = f"cell-{cell_id}"
        cell.parent.insert(cell.parent.index(cell), nodes.target("", "", ids=[anchor]))
        name = cell_label(path.stem, cell_id)
        domain.note_hyperlink_target(name, app.env.docname, anchor, anchor)


def _link(text: str, anchor: str, kind: str) -> nodes.paragraph:
    link = nodes.reference("", text, refuri=f"#{anchor}", internal=True)
    return nodes.paragraph("", "", link, classes=[kind])


def _what(output: nodes.Element) -> str:
    """Return what an output is, in a word, or nothing where there is nothing to see."""
    seen = [node for node in output.findall() if isinstance(node, _SEEN)]
    if any(isinstance(node, nodes.image) for node in seen):
        return "figure"
    tables = [n for n in seen if isinstance(n, nodes.table) or "<table" in n.astext()[:300]]
    return "table" if tables else "result" if seen else ""


def _gathered(cell: nodes.container) -> list[nodes.Node]:
    """Take out of the text what a folded cell hides, with its name; leave a link to it."""
    parent, place = cell.parent, cell.parent.index(cell)
    target, name = parent[place - 1], nodes.paragraph(classes=["cell-title"])
    anchor = target["ids"][0]
    if cell["folded"] == "input" and len(cell) > 1 and (what := _what(cell[1])):
        code = f"code-{anchor.removeprefix('cell-')}"
        back = nodes.reference("", f"this {what}", refuri=f"#{anchor}", internal=True)
        name += [nodes.strong("", cell["title"]), nodes.Text(", for "), back]
        name["ids"] = [code]
        source = cell.pop(0)
        link = _link(f"code for this {what}", code, "to-code")
        if captions := [*cell.findall(nodes.caption)]:
            captions[0] += nodes.inline("", " ", *link, classes=["to-code"])
        else:
            cell += link
        return [name, nodes.container("", source, classes=["cell"])]
    del parent[place - 1 : place + 1]
    found = EXERCISE.match(parent[0].astext()) if isinstance(parent, nodes.section) else None
    if "tag_solution" in cell["classes"] and found:
        parent.insert(place - 1, _link("solution", anchor, "to-solution"))
        name += nodes.Text(f"Solution of exercise {found[1]}")
    else:
        name += nodes.strong("", cell["title"])
    return [target, name, cell]


def _resolved(app, doctree, docname) -> None:
    if app.builder.format != "html":
        return
    gathered, has_solutions = [], False
    for cell in _cells(doctree):
        if "tag_exercise" in cell["classes"]:
            del cell[1:]
        if cell["folded"]:
            gathered += _gathered(cell)
            has_solutions |= "tag_solution" in cell["classes"]
    if gathered:
        title = "Code and solutions of this page" if has_solutions else "Code of this page"
        start = f'<details class="page-code" id="page-code"><summary>{title}</summary>'
        doctree += [nodes.raw("", start, format="html"), *gathered,
                    nodes.raw("", "</details>", format="html")]  # fmt: skip


def setup(app):
    """Register the events: anchors before others look for them, links before code's own."""
    app.connect("doctree-read", _read)
    app.connect("doctree-resolved", _resolved, priority=400)
