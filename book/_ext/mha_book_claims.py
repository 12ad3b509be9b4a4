"""Claims on the pages, a line each, and the two ledgers, all rendered from the ledgers' files."""

import html
import json
from collections import Counter
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from mha_book_equations import add_directive, proved
from mha_book_html import template
from mha_book_ledger import (
    CLAIMS,
    LEDGERS,
    PAPERS,
    Ledger,
    evidence_anchor,
    fill_numbers,
    load_ledger,
    read_works,
    row_values,
    scope_kind,
)
from mha_book_toc import part_of
from sphinx import addnodes
from sphinx.util import logging

logger = logging.getLogger(__name__)


def cell_label(chapter: str, cell_id: str) -> str:
    """Return the name under which a cell's anchor can be referred to."""
    return f"cell:{chapter}:{cell_id}"


def load(env, ledger: Ledger | None = None) -> list[dict]:
    """Read a ledger of the book being built, or all, and note that the page depends on them.

    A page on one ledger depends on whatever its verdicts are computed from.
    """
    entries, root = [], Path(env.srcdir)
    for each in LEDGERS if ledger is None else (ledger,):
        path = root / each.file
        env.note_dependency(str(path))
        if path.exists():
            entries += load_ledger(path)
    for entry in entries if ledger else ():
        for file in (f"book/{entry['chapter']}.ipynb", entry["file"]):
            if file and (root / file).is_file():
                env.note_dependency(str(root / file))
    return entries


def slug(verdict: str) -> str:
    """Return the CSS class of a verdict."""
    return f"claim-{verdict.replace(' ', '-')}"


def part(*children, classes, **attributes):
    """Return a container with these children and classes."""
    return nodes.container("", *children, classes=classes, **attributes)


def refer(target: str, text: str = "", kind: str = "ref") -> nodes.Node:
    """Return a cross-reference to a label of any page, or to a page; a dead one is a warning."""
    return addnodes.pending_xref(
        "", nodes.inline(text, text), refdomain="std", reftype=kind, reftarget=target,
        refexplicit=bool(text), refwarn=True,
    )  # fmt: skip


def from_template(self, name: str, row: dict, /, **given) -> nodes.Node:
    """Parse a template of Markdown, filled with a row, into a container."""
    given |= {"row": row, "slug": slug, "filled": lambda key: filled(self, row, key)}
    text, box = template(name).render(given), part(classes=[])
    self.state.nested_parse(StringList(text.splitlines(), "ledger"), 0, box)
    return box


def filled(self, entry: dict, key: str) -> str:
    """Return a text of an entry with the numbers of the chapter's cells and the stored file."""
    if "{glue:text}" not in entry[key]:
        return entry[key]
    try:
        return fill_numbers(entry[key], row_values(entry, Path(self.env.srcdir)))
    except KeyError as error:
        where = " and ".join(filter(None, (entry["chapter"], entry["file"])))
        logger.warning(f"claim {entry['id']}: no {error} in {where}", type="mha_book")
        return entry[key]


def claim_tags(self):
    """``{claim} C16``: a tag for each claim of this chapter that is named, in one line.

    A tag has the claim's name and verdict. It opens to what was found (the claim with its
    condition, where the row has no ``line``) and to the ledger, where the argument stands.
    """
    entries = {entry["id"]: entry for entry in load(self.env)}
    tags, chapter = [], Path(self.env.docname).name
    for name in self.arguments[0].split():
        entry = entries.get(name)
        if entry is None or entry["verdict"] == "open" or entry["chapter"] != chapter:
            problem = f"claim {name} has no row with a verdict and the chapter {chapter}"
            logger.warning(problem, location=self.get_location(), type="mha_book")
        else:
            tags += claim_tag(self, name, entry)
    return [part(*tags, classes=["claim-tags"])] if tags else []


def claim_tag(self, name: str, entry: dict) -> list[nodes.Node]:
    """Render one claim."""
    std, anchor = self.env.get_domain("std"), f"claim-{name.lower()}"
    std.note_hyperlink_target(anchor, self.env.docname, anchor, f"Claim {name}")
    return from_template(self, "claim-tag.md", entry, anchor=anchor).children


def rows_of_ledger(self):
    """``{claims-ledger}`` and ``{papers-ledger}``: every row, by section, with counts."""
    self.env.note_reread()  # the rows are of all pages
    (ledger,) = (each for each in LEDGERS if f"{each.name}-ledger" == self.name)
    root = Path(self.env.srcdir)
    entries, works = load(self.env, ledger), {}
    if ledger is PAPERS:
        self.env.note_dependency(str(root / "book" / "references.bib"))
        works = read_works(root)
    out = [verdict_counts(entries, ledger), filters(entries, root, works)]
    for key, title in ledger.sections.items():
        rows = [entry for entry in entries if entry["section"] == key]
        if rows:
            section = nodes.section(ids=[f"ledger-{key}"])
            section += nodes.title(title, title)
            section += [card(self, entry, ledger, works) for entry in rows]
            out.append(section)
    return out


def card(self, entry: dict, ledger: Ledger, works: dict) -> nodes.Node:
    """Render one row."""
    std, anchor = self.env.get_domain("std"), f"ledger-{entry['id'].lower()}"
    std.note_hyperlink_target(anchor, self.env.docname, anchor, entry["id"])
    box = from_template(
        self, "ledger-row.md", entry, work=works.get(entry.get("paper")), cell=cell_label,
        by=works[entry["paper"]].year if ledger is PAPERS else ", ".join(entry["note"]),
        is_claim=ledger is CLAIMS, test=evidence_anchor(entry["test"]),
        is_decided=any(p.value or p.text.startswith("open:") for p in entry["judged"]),
        proved=proved(Path(self.env.srcdir), "claims").get(entry["id"]),
    )  # fmt: skip
    box["classes"], box["ids"] = ["claim", "claim-card", slug(entry["verdict"])], [anchor]
    return box


def filters(entries: list[dict], root: Path, works: dict) -> nodes.Node:
    """Return the place of the filters, with what ``claims.js`` needs to make them.

    Without a script it is empty, and every claim is shown.
    """
    parts = part_of(root) if (root / "_toc.yml").exists() else {}
    rows = {
        f"ledger-{entry['id'].lower()}": {
            "verdict": entry["verdict"],
            **({} if works else {"part": parts.get(entry["chapter"], "")}),
            "scope": scope_kind(entry),
            **({"year": works[entry["paper"]].year} if works else {}),
        }
        for entry in entries
    }
    data = html.escape(json.dumps(rows))
    return nodes.raw("", f'<div class="claim-filters" data-rows="{data}"></div>', format="html")


def verdict_counts(entries: list[dict], ledger: Ledger = CLAIMS) -> nodes.Node:
    """Return the counts by verdict as one line of badges."""
    counts = Counter(entry["verdict"] for entry in entries)
    line = template("verdicts.html").render(counts=counts, verdicts=ledger.verdicts)
    return nodes.raw("", line, format="html")


def setup(app):
    """Register the directives."""
    add_directive(app, "claim", claim_tags, required_arguments=1, final_argument_whitespace=True)
    for ledger in LEDGERS:
        add_directive(app, f"{ledger.name}-ledger", rows_of_ledger)
