"""The status page: what the book holds, counted from its sources at build time."""

import json
import re
from pathlib import Path

from docutils import nodes
from mha_book_claims import load, verdict_counts
from mha_book_equations import table
from mha_book_ledger import read_pages
from mha_book_pages import typed_numbers, words
from mha_book_toc import toc_pages
from sphinx.util.docutils import SphinxDirective

__all__ = ["chapter_rows", "lock_versions", "setup"]

LOCKED = ("jax", "numpy", "matplotlib", "jupyter-book", "sphinx")


def lock_versions(root: Path, names: tuple[str, ...] = LOCKED) -> list[tuple[str, str, str]]:
    """Return (package, version, where it applies) of these packages from ``requirements.txt``."""
    text = (root / "requirements.txt").read_text(encoding="utf8")
    rows = []
    for name in names:
        pattern = rf"^{re.escape(name)}==(\S+)[ \t]*(?:;[ \t]*(.+))?$"
        for version, marker in re.findall(pattern, text, re.M):
            where = marker.replace("python_full_version", "Python").replace("'", "").strip()
            rows.append((name, version, where or "every Python"))
    return rows


def chapter_rows(root: Path) -> list[tuple[str, ...]]:
    """Return (page, code cells, exercises, claims, words, typed numbers) of every notebook."""
    rows = []
    stated = read_pages(root)
    for page in toc_pages(root):
        path = root / f"{page}.ipynb"
        if not path.exists():
            continue
        cells = json.loads(path.read_text(encoding="utf8"))["cells"]
        code = [c for c in cells if c["cell_type"] == "code"]
        exercises = sum("exercise" in c["metadata"].get("tags", ()) for c in code)
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        rows.append(
            (
                Path(page).name,
                str(len(code)),
                str(exercises),
                str(len(stated[Path(page).name].claims)),
                str(words(text)),
                str(typed_numbers(text)),
            )
        )
    return rows


class Claims(SphinxDirective):
    """``{claims-count}``: the counts of the verdicts."""

    def run(self):
        """Return the line of counts."""
        return [verdict_counts(load(self.env))]


class Chapters(SphinxDirective):
    """``{chapter-table}``: the chapters and what each of them holds."""

    def run(self):
        """Return the table."""
        head = ("chapter", "code cells", "exercises", "claims", "words", "typed numbers")
        return [table(head, chapter_rows(Path(self.env.srcdir)))]


class Versions(SphinxDirective):
    """``{locked-versions}``: the versions that the lock file pins."""

    def run(self):
        """Return the table."""
        self.env.note_dependency(str(Path(self.env.srcdir) / "requirements.txt"))
        rows = lock_versions(Path(self.env.srcdir))
        return [table(("package", "version", "for"), rows)] if rows else [nodes.paragraph()]


def setup(app):
    """Register the directives."""
    app.add_directive("claims-count", Claims)
    app.add_directive("chapter-table", Chapters)
    app.add_directive("locked-versions", Versions)
