"""The classification of displayed equations; directives that are functions.

Every displayed equation of the book has a label, and ``book/equations/<page>.yml`` says of each
label on that page what holds the equation:

* ``tested``: a function registered under the label in ``tests/book/equations/`` has both sides;
* ``definition``: it gives a name to something, and there is nothing to check;
* ``executed``: the page's own text is parsed and run, and compared with the package: a function
  registered under the label in ``tests/book/equations/`` gives the arrays.
"""

from pathlib import Path

from mha_book_toc import read
from sphinx.util.docutils import SphinxDirective

KINDS = ("executed", "tested", "definition")


def load_kinds(root: Path) -> dict[str, dict[str, dict]]:
    """Read the classification: page -> label -> ``{kind, …}``."""
    pages = {}
    for path in sorted((root / "book" / "equations").glob("*.yml")):
        table = read(path) or {}
        pages[path.stem] = {
            label: {"kind": value} if isinstance(value, str) else value
            for label, value in table.items()
        }
    return pages


def load_theorems(root: Path) -> list[dict]:
    """Read the list of the theorems, in the order of the page."""
    path = root / "proofs" / "theorems.yml"
    return read(path) if path.is_file() else []


def proved(root: Path, field: str = "proves") -> dict[str, list[str]]:
    """Return label of an equation, or id of a claim -> Markdown links to the theorems about it."""
    found: dict[str, list[str]] = {}
    for theorem in load_theorems(root):
        name = theorem["name"].replace("_", " ")
        for label in theorem.get(field, []):
            link = f"{{ref}}`{name} <theorem-{name.replace(' ', '-')}>`"
            found.setdefault(label, []).append(link)
    return found


def add_directive(app, name: str, run, **options) -> None:
    """Register a function from the directive to its nodes, with what the directive may be given."""
    app.add_directive(name, type(name, (SphinxDirective,), {"run": run, **options}))
