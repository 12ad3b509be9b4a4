"""What a page offers to those who pass it on: how to cite it, a card, a feed of changes.

* At the end of every page of ``_toc.yml``: its citation in words and in BibTeX, from
  ``CITATION.cff``; its address where a public one is configured (``mha_book_public``).
* With a public address: the picture that a link to the page is shown with, drawn here once and
  kept in ``_build/cards``, and ``feed.xml``, Atom, with the sections of ``CHANGELOG.md``.
"""

import hashlib
import html
import os
import re
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

import yaml
from markdown_it import MarkdownIt
from mha_book_html import describe, meta_tags
from mha_book_public import Public
from mha_book_toc import toc_pages

CARD = (1200, 630)  # pixels, what the networks show whole
STYLE = "share.css"


class Book(NamedTuple):
    """What a citation says of the book; the date of its version is empty before its release."""

    title: str
    authors: tuple[str, ...]
    version: str
    date: str = ""


class Release(NamedTuple):
    """A section of the changelog: its version, its date or nothing, and its text."""

    version: str
    date: str
    text: str


def releases(changelog: str) -> list[Release]:
    """Return the sections ``## 1.2.0 - 2026-12-24``, and ``## Unreleased``, in order."""
    parts = re.split(
        r"^## +\[?([\w.]+)\]?(?: +[-–—] +(\d{4}-\d\d-\d\d))? *$", changelog, flags=re.M
    )
    triples = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return [Release(version, date or "", text.strip()) for version, date, text in triples]


def read_book(root: Path) -> Book:
    """Read ``CITATION.cff``; the date of its version from there or from ``CHANGELOG.md``."""
    data = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf8"))
    version, changes = str(data["version"]), (root / "CHANGELOG.md").read_text(encoding="utf8")
    dates = {release.version: release.date for release in releases(changes)}
    authors = tuple(
        author.get("name") or f"{author['given-names']} {author['family-names']}"
        for author in data["authors"]
    )
    date = str(data.get("date-released") or dates.get(version, ""))
    return Book(data["title"], authors, version, date)


def citation(book: Book, title: str, url: str) -> str:
    """Return the citation of a page as HTML."""
    names, quoted = ", ".join(book.authors), html.escape(title.rstrip(".?!"))
    mark = title[-1] if title.endswith(("?", "!")) else "."
    when = f", {book.date[:4]}" if book.date else ", not yet released"
    link = f' <a href="{html.escape(url)}">{html.escape(url)}</a>' if url else ""
    return (
        f"{html.escape(names)}: “{quoted}{mark}” In <cite>{html.escape(book.title)}</cite>, "
        f"version {book.version}{when}.{link}"
    )


def bibtex(book: Book, page: str, title: str, url: str) -> str:
    """Return the citation of a page as an entry of BibTeX."""
    fields = {
        "author": " and ".join(f"{{{author}}}" for author in book.authors),
        "title": f"{{{title}}}",
        "booktitle": f"{{{book.title}}}",
        "year": book.date[:4],
        "note": f"Version {book.version}" + ("" if book.date else ", not yet released"),
        "url": url,
    }
    lines = [f"  {name:9} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@incollection{{mha-book:{page},", *lines, "}"])


def cite_block(book: Book, page: str, title: str, url: str) -> str:
    """Return the lines at the end of a page; the link is the entry of BibTeX itself."""
    entry = quote(bibtex(book, page, title, url) + "\n")
    return (
        f'<p class="cite">Cite this page: {citation(book, title, url)} '
        f'<a href="data:text/x-bibtex;charset=utf-8,{entry}" download="{page}.bib">BibTeX</a></p>\n'
    )


def feed(book: Book, entries: list[Release], site: str, now: str) -> str:
    """Return the feed of changes.

    Args:
        book: whose changes they are.
        entries: the sections of the changelog.
        site: public address of the book.
        now: the time that stands for the date of what is not released, RFC 3339.
    """
    root = ElementTree.Element("feed", xmlns="http://www.w3.org/2005/Atom")

    def add(parent: ElementTree.Element, name: str, text: str = "", **given: str) -> None:
        ElementTree.SubElement(parent, name, given).text = text

    dates = [f"{entry.date}T00:00:00Z" if entry.date else now for entry in entries]
    add(root, "title", f"{book.title}: changes")
    add(root, "id", f"{site}feed.xml")
    add(root, "link", rel="self", href=f"{site}feed.xml")
    add(root, "link", href=site)
    add(root, "updated", max(dates, default=now))
    author = ElementTree.SubElement(root, "author")
    add(author, "name", ", ".join(book.authors))
    for entry, date in zip(entries, dates, strict=True):
        part = ElementTree.SubElement(root, "entry")
        add(part, "title", f"Version {entry.version}" if entry.date else "Since the last version")
        add(part, "id", f"{site}feed.xml#{entry.version.lower()}")
        add(part, "link", href=site)
        add(part, "updated", date)
        add(part, "content", MarkdownIt().render(entry.text), type="html")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def build_time() -> str:
    """Return the time of the build, SOURCE_DATE_EPOCH where it is set, as RFC 3339."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def draw_card(file: Path, book_title: str, title: str, text: str) -> None:
    """Draw the card of a page: its title, its first sentences, and a causal pattern of weights."""
    import numpy as np
    from matplotlib.figure import Figure

    size = 44 if len(title) < 45 else 36
    lines = textwrap.wrap(title, 1150 // size)[:3]
    words = "\n".join(textwrap.wrap(text, 46, max_lines=5, placeholder=" …"))
    rows, columns = np.indices((8, 8))
    weights = np.exp(1.6 * (columns == 0) - 0.45 * abs(rows - columns - 1))
    weights = np.where(columns > rows, np.nan, weights / np.tril(weights).sum(1, keepdims=True))
    figure = Figure(figsize=(CARD[0] / 100, CARD[1] / 100), dpi=100, layout="none")
    picture = figure.add_axes((0.735, 0.3, 0.225, 0.225 * CARD[0] / CARD[1]))
    picture.imshow(weights, cmap="Blues", vmin=0, vmax=0.8)
    picture.set_axis_off()
    figure.add_axes((0, 0, 1, 0.025), facecolor="#0072b2", xticks=[], yticks=[])
    options = {"va": "top", "parse_math": False}
    figure.text(0.055, 0.87, "\n".join(lines), size=size, weight="bold", **options)
    place = 0.82 - 0.115 * len(lines) * size / 44
    figure.text(0.055, place, words, size=22, color="#333333", linespacing=1.35, **options)
    figure.text(0.055, 0.1, book_title, size=20, color="#0d56bd", **options)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, format="png", metadata={"Software": None})


def card(folder: Path, book_title: str, title: str, text: str) -> bytes:
    """Return the card of a page, drawn anew only where what stands on it changed."""
    source = Path(__file__).read_bytes()
    told = "\0".join((book_title, title, text)).encode()
    file = folder / f"{hashlib.sha256(source + told).hexdigest()[:16]}.png"
    if not file.exists():
        draw_card(file, book_title, title, text)
    return file.read_bytes()


def _page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    root = Path(app.srcdir)
    if doctree is None or pagename not in app.mha_book_pages or "body" not in context:
        return
    public, book = Public(*app.config.mha_book_public), app.mha_book
    title = html.unescape(re.sub(r"<[^>]*>", "", context.get("title", "")))
    title = re.sub(r"^\d+\.\s+", "", title)
    short = pagename.removeprefix("book/").replace("/", "-")
    url = f"{public.site}{pagename}.html" if public.site else ""
    context["body"] += cite_block(book, short, title, url)
    if not public.site:
        return
    data = card(root / "_build" / "cards", app.config.html_title, title, describe(doctree))
    file = Path(app.outdir) / "_images" / "cards" / f"{short}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    context["metatags"] += meta_tags(
        og__image=f"{public.site}_images/cards/{short}.png",
        og__image__width=str(CARD[0]),
        og__image__height=str(CARD[1]),
        og__image__alt=f"{title}. {app.config.html_title}",
        twitter__card="summary_large_image",
    )
    context["metatags"] += (
        f'<link rel="alternate" type="application/atom+xml" title="Changes" '
        f'href="{html.escape(public.site)}feed.xml" />\n'
    )


def _begin(app) -> None:
    root = Path(app.srcdir)
    app.mha_book = read_book(root)
    app.mha_book_pages = set(toc_pages(root))


def _finished(app, exception) -> None:
    if exception is not None or app.builder.format != "html":
        return
    site, out = Public(*app.config.mha_book_public).site, Path(app.outdir)
    (out / "feed.xml").unlink(missing_ok=True)
    if site:
        changes = (Path(app.srcdir) / "CHANGELOG.md").read_text(encoding="utf8")
        text = feed(app.mha_book, releases(changes), site, build_time())
        (out / "feed.xml").write_text(text, encoding="utf8")


def setup(app):
    """Register the events."""
    app.add_css_file(STYLE)
    app.connect("builder-inited", _begin)
    app.connect("html-page-context", _page, priority=901)  # after the description
    app.connect("build-finished", _finished)
