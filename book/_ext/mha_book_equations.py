"""The classification of displayed equations, and the census of them.

Every displayed equation of the book has a label, and ``book/equations/<page>.yml`` says of each
label on that page what holds the equation:

* ``tested``: a function registered under the label in ``tests/book/equations/`` has both sides;
* ``definition``: it gives a name to something, and there is nothing to check;
* ``executed``: the page's own text is parsed and run, and compared with the package: a function
  registered under the label in ``tests/book/equations/`` gives the arrays.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)

KINDS = ("executed", "tested", "definition")


def normalise(latex: str) -> str:
    """Return LaTeX without white space, so that the same formula compares equal."""
    return re.sub(r"\s+", "", latex)


def load_kinds(root: Path) -> dict[str, dict[str, dict]]:
    """Read the classification: page -> label -> ``{kind, …}``."""
    pages = {}
    for path in sorted((root / "book" / "equations").glob("*.yml")):
        table = yaml.safe_load(path.read_text(encoding="utf8")) or {}
        pages[path.stem] = {
            label: {"kind": value} if isinstance(value, str) else value
            for label, value in table.items()
        }
    return pages


_GROUP = re.compile(r"\^\{([a-z'\s]+)\}")


def alterations(latex: str) -> Iterator[tuple[str, str]]:
    """Yield (what was altered, the altered text): signs, indices, functions, one at a time."""
    for match in re.finditer(r"[+-]", latex):
        other = {"+": "-", "-": "+"}[match[0]]
        yield f"sign at {match.start()}", latex[: match.start()] + other + latex[match.end() :]
    for match in _GROUP.finditer(latex):
        if latex[: match.start()].endswith("\\delta"):
            continue  # symmetric
        letters = re.findall(r"[a-z]'*", match[1])
        for place in range(len(letters) - 1):
            swapped = [*letters]
            swapped[place : place + 2] = swapped[place + 1], swapped[place]
            if swapped == letters:
                continue
            new = f"^{{{''.join(swapped)}}}"
            what = f"{match[0]} becomes {new} at {match.start()}"
            yield what, latex[: match.start()] + new + latex[match.end() :]
    for old, new in (("\\exp", "\\tanh"), ("\\log", "\\tanh"), ("\\sqrt", "")):
        for match in re.finditer(re.escape(old), latex):
            what = f"{old} at {match.start()}"
            yield what, latex[: match.start()] + new + latex[match.end() :]


class census(nodes.General, nodes.Element):
    """Stands where the table of counts goes, until every page has been read."""


def leave_census(self):
    """``{equation-census}``: how many displayed equations of each page are of which kind."""
    return [census()]


def collect(app, doctree):
    """Note the labels of the displayed equations of the page just read."""
    displayed = [node for node in doctree.findall(nodes.math_block) if not _is_output(node)]
    labels = [node.get("label") for node in displayed]
    app.env.metadata[app.env.docname]["mha_book_equations"] = labels
    page = Path(app.env.docname).name
    register = Path(app.srcdir) / "book" / "equations" / f"{page}.yml"
    if register.exists():  # a file that is not there would have the page read every time
        app.env.note_dependency(str(register))
    kinds = load_kinds(Path(app.srcdir)).get(page, {})
    for node in displayed:
        label = node.get("label")
        if label is None or "amsmath" in node["classes"]:
            text = f"displayed equation without a label: {node.astext()[:50]!r}"
            logger.warning(text, location=node, type="mha_book")
        elif kinds.get(label, {}).get("kind") not in KINDS:
            text = f"equation {label} has no kind in book/equations/{page}.yml"
            logger.warning(text, location=node, type="mha_book")


def _is_output(node: nodes.Node) -> bool:
    """Whether a cell printed it: such an equation has no text on the page but its program's."""
    while node is not None:
        if "cell_output" in node.get("classes", ()):
            return True
        node = node.parent
    return False


def _always_reread(app, env, added, changed, removed):
    """Read the pages that depend on all others again in every build."""
    return {d for d in env.found_docs if Path(d).name in ("status", "claims", "papers", "api")}


def counts(app) -> list[tuple[str, Counter]]:
    """Return (page, counts by kind) of every page that displays an equation."""
    kinds = load_kinds(Path(app.srcdir))
    rows = []
    for docname in app.config.external_site_map:
        name = docname.removesuffix(".ipynb").removesuffix(".md")
        labels = app.env.metadata[name].get("mha_book_equations", [])
        table = kinds.get(Path(name).name, {})
        kind = Counter(table.get(label, {}).get("kind", "none") for label in labels)
        if labels:
            rows.append((name, kind))
    return rows


def fill(app, doctree, docname):
    """Replace the placeholder by the table."""
    for node in list(doctree.findall(census)):
        rows = counts(app)
        total = sum((kind for _, kind in rows), Counter())
        body = [
            (app.env.titles[name].astext(), *(str(kind[k]) for k in KINDS), str(kind.total()))
            for name, kind in rows
        ]
        body.append(("all pages", *(str(total[k]) for k in KINDS), str(total.total())))
        held = total.total() - total["definition"]
        share = f"{total['executed'] / held:.0%}" if held else "none"
        text = f"Of the {held} that are no definitions, {total['executed']} are executed: {share}."
        node.replace_self([table(("page", *KINDS, "all"), body), nodes.paragraph(text, text)])


def add_directive(app, name: str, run, **options) -> None:
    """Register a function from the directive to its nodes, with what the directive may be given."""
    app.add_directive(name, type(name, (SphinxDirective,), {"run": run, **options}))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.Node:
    """Return a plain table, numbers to the right."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]

    def row(cells):
        out = nodes.row()
        for cell in cells:
            classes = ["text-right"] if cell.isdigit() else []
            out += nodes.entry("", nodes.paragraph(cell, cell), classes=classes)
        return out

    group += nodes.thead("", row(head))
    group += nodes.tbody("", *(row(r) for r in rows))
    return nodes.container("", nodes.table("", group), classes=["wide-table"])


def setup(app):
    """Register the directive and the events."""
    app.add_node(census)
    add_directive(app, "equation-census", leave_census)
    app.connect("doctree-read", collect)
    app.connect("env-get-outdated", _always_reread)
    app.connect("doctree-resolved", fill)
