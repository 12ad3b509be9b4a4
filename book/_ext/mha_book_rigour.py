"""How the displayed equations of each page are held: proved, executed, tested, or a definition."""

from collections import Counter
from pathlib import Path

from docutils import nodes
from mha_book_equations import KINDS, add_directive, load_kinds, proved, table
from mha_book_toc import toc_pages


def rigour_rows(root: Path) -> list[tuple[str, Counter[str]]]:
    """Return (page, its equations by kind, and how many are proved), in order."""
    kinds, theorems, rows = load_kinds(root), proved(root), []
    for name in (Path(page).name for page in toc_pages(root)):
        if labels := {label: entry["kind"] for label, entry in kinds.get(name, {}).items()}:
            held = ["proved"] * len(labels.keys() & theorems)
            rows.append((name, Counter([*labels.values(), *held])))
    return rows


def rigour(self):
    """``{equation-rigour}``: the equations of each page by kind."""
    rows = rigour_rows(Path(self.env.srcdir))
    total = sum((count for _, count in rows), Counter())
    columns = ("proved", *KINDS)
    body = [
        (page, *(str(count[name]) for name in columns), str(sum(count[kind] for kind in KINDS)))
        for page, count in [*rows, ("all pages", total)]
    ]
    executed = total["executed"]
    share = executed / (executed + total["tested"])
    text = f"Of those that are no definitions, {executed} are executed: {share:.0%}."
    return [table(("page", *columns, "all"), body), nodes.paragraph(text, text)]


def _always_reread(app, env, added, changed, removed):
    """Read the pages that depend on all others again in every build."""
    whole = ("status", "claims", "papers", "api", "notation-table")
    return {page for page in env.found_docs if Path(page).name in whole}


def setup(app):
    """Register the directive, and what is read again."""
    add_directive(app, "equation-rigour", rigour)
    app.connect("env-get-outdated", _always_reread)
