"""How a page is cited: at its end, in words and in BibTeX, from ``CITATION.cff``.

Its address is there where a public one is configured (``mha_book_public``).
"""

import html
import re
from pathlib import Path
from typing import NamedTuple

from mha_book_html import template
from mha_book_public import Public
from mha_book_toc import read, toc_pages


class Book(NamedTuple):
    """What a citation says of the book; the date of its version is empty before its release."""

    title: str
    authors: tuple[str, ...]
    version: str
    date: str = ""


def read_book(root: Path) -> Book:
    """Read ``CITATION.cff``."""
    data = read(root / "CITATION.cff")
    authors = tuple(
        author.get("name") or f"{author['given-names']} {author['family-names']}"
        for author in data["authors"]
    )
    return Book(data["title"], authors, str(data["version"]), str(data.get("date-released", "")))


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


def _page(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    root = Path(app.srcdir)
    if doctree is None or pagename not in toc_pages(root) or "body" not in context:
        return
    site = Public(*app.config.mha_book_public).site
    title = html.unescape(re.sub(r"<[^>]*>", "", context.get("title", "")))
    title = re.sub(r"^\d+\.\s+", "", title)
    short = pagename.removeprefix("book/").replace("/", "-")
    url = f"{site}{pagename}.html" if site else ""
    book = read_book(root)
    entry = bibtex(book, short, title, url) + "\n"
    cite = template("cite.html").render(book=book, page=short, title=title, url=url, entry=entry)
    context["body"] += f"{cite}\n"


def setup(app):
    """Register the event."""
    app.connect("html-page-context", _page, priority=901)  # after the description
