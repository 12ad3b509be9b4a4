"""The book on paper: one tagged PDF of all pages, or of one of them: `make pdf [CHAPTER=name]`.

The built pages are put into one document in the order of ``_toc.yml``: light, folds open, links
between them leading within the document, solutions of the exercises at its end, the mathematics
typeset by the book's own MathJax. Chromium prints it twice: the first print says on which page each
heading stands, the second has these numbers in its contents. What is searched and not read is left
out of the whole: the reference of the API, which would be a third of it, and the lists of links.
"""

import os
import posixpath
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_public import read_public  # noqa: E402
from mha_book_toc import read_parts  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
NAMED = ("id", "for", "name", "aria-labelledby", "aria-describedby", "headers")
RECURRING = {"Exercises", "Summary", "What this does not show", "References"}  # in every chapter
LEFT_OUT = ("book/api", "book/exercises", "book/figures")
# What is for the screen alone.
DROPPED = (
    ".headerlink, .copybtn, script, .d-print-none, .screen-only, .to-code, "
    ".claim-filters, .cite, .hx details"
)
STYLE = ROOT / "book" / "_static" / "paper.css"
PAGES = """pages => {
  for (const link of document.querySelectorAll(".paper-contents a"))
    link.dataset.page = pages[link.hash.slice(1)] || "";
}"""
SETTLED = """async () => {
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  await document.fonts.ready;
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  return [...document.images].filter(i => !i.naturalWidth).map(i => i.getAttribute("src"));
}"""


@dataclass
class Chapter:
    """A page of the book, as it goes to paper.

    Attributes:
        name: document, ``book/gradients``.
        part: caption of its part, empty for the first page.
        numbered: whether it is one of the numbered chapters.
        article: its text.
        solutions: (anchor of the exercise, its name, the solution).
    """

    name: str
    part: str = ""
    numbered: bool = False
    article: Tag = field(default_factory=lambda: Tag(name="article"))
    solutions: list[tuple[str, str, Tag]] = field(default_factory=list)


def anchor_of(name: str, fragment: str = "") -> str:
    """Return what an anchor of a page, or the page itself, is called in the document."""
    page = name.removeprefix("book/").replace("/", "-")
    return f"{page}--{fragment}" if fragment else page


def element(name: str, *inside: str | Tag, **attributes: str) -> Tag:
    """Return an element with what is in it; ``kind`` is its class."""
    names = {"class" if key == "kind" else key: value for key, value in attributes.items()}
    tag = Tag(name=name, attrs=names)
    tag.extend(inside)
    return tag


def link_target(link: str, page: str, pages: set[str], site: str) -> str:
    """Return where a link of a page leads in the document: within it, outside, or nowhere.

    Args:
        link: as it stands on the page.
        page: the document where it stands, ``book/gradients``.
        pages: the documents on the paper.
        site: the public address of the book, for links to other pages; or empty.
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    target = page if not parts.path else path.removesuffix(".html")
    if target in pages:
        return f"#{anchor_of(target, unquote(parts.fragment))}"
    return f"{site}{path}{'#' + parts.fragment if parts.fragment else ''}" if site else ""


def heading_of(cell: Tag) -> tuple[str, str]:
    """Return the anchor and the name of the exercise that a solution belongs to."""
    title = cell.find_previous(["h2", "h3", "h4"])
    return title.find_parent("section").get("id", ""), title.get_text(" ", strip=True)


def prepare(chapter: Chapter, html: str, pages: set[str], site: str) -> None:
    """Read the text of a built page into a chapter: its own names, its links, its solutions.

    Args:
        chapter: to be filled.
        html: the built page.
        pages: the documents on the paper.
        site: the public address of the book, or empty.
    """
    article = BeautifulSoup(html, "html.parser").select_one("article.bd-article")
    if article is None:
        raise ValueError(f"{chapter.name}.html: expected an article, got none")
    for tag in article.select(DROPPED):
        tag.decompose()
    # They look like the text around them, and would be elements of the tags of the PDF.
    for piece in article.select(".highlight :is(.n, .p, .w):not([id])"):
        piece.unwrap()
    for fold in article.find_all("details"):
        fold["open"] = ""
    for tag in article.find_all(True):
        for name in NAMED:
            if value := tag.get(name):
                words = value if isinstance(value, list) else value.split()
                tag[name] = " ".join(anchor_of(chapter.name, word) for word in words)
        for name, value in tag.attrs.items():
            if isinstance(value, str) and "url(#" in value:
                tag[name] = re.sub(
                    r"url\(#([^)]+)\)", rf"url(#{anchor_of(chapter.name)}--\1)", value
                )
        if tag.name in ("use", "image") and (tag.get("xlink:href") or "").startswith("#"):
            tag["xlink:href"] = f"#{anchor_of(chapter.name, tag['xlink:href'][1:])}"
        if tag.name == "a" and tag.get("href"):
            tag["href"] = link_target(tag["href"], chapter.name, pages, site)
            if not tag["href"] and not tag.get("id"):
                tag.unwrap()
            elif not tag["href"]:
                del tag["href"]
        for name in ("src", "data"):
            value = tag.get(name)
            if value and not urlsplit(value).scheme:
                folder = posixpath.dirname(chapter.name)
                tag[name] = posixpath.normpath(posixpath.join(folder, value))
        tag.attrs.pop("loading", None)
    solved = zip(article.select(".to-solution"), article.select(".tag_solution"), strict=True)
    for number, (place, cell) in enumerate(solved, 1):
        exercise, name = heading_of(place)
        anchor = anchor_of(chapter.name, f"solution-{number}")
        link = element("a", "The solution stands at the end.", href=f"#{anchor}")
        place.replace_with(element("p", link, kind="to-solution"))
        cell.find_previous_sibling("p").decompose()
        cell.extract()["id"] = anchor
        chapter.solutions.append((exercise, name, cell))
    chapter.article = article


def _text(tag: Tag) -> str:
    return " ".join(tag.get_text().split())


def _listed(kind: str, anchor: str, title: Tag | str) -> Tag:
    """Return a line of the contents."""
    words = element("span", title if isinstance(title, str) else "")
    if isinstance(title, Tag):
        words.extend(list(BeautifulSoup(title.decode_contents(), "html.parser").contents))
        for inner in words.find_all(True):
            inner.attrs.pop("id", None)
            if inner.name == "a":
                inner.unwrap()
    return element("li", element("a", words, href=f"#{anchor}"), kind=kind)


def assemble(book: list[Chapter], head: str, title: str, about: list[str]) -> str:
    """Return the document.

    Args:
        book: the chapters, prepared; with one alone there are no parts.
        head: what the head of a built page loads.
        title: of the document.
        about: the lines below the title of the whole book.
    """
    whole, part = len(book) > 1, ""
    soup = BeautifulSoup(
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head>'
        f'<meta charset="utf-8">{head}<style>{STYLE.read_text(encoding="utf8")}</style></head>'
        f'<body><main><article class="bd-article"></article></main></body></html>',
        "html.parser",
    )
    soup.head.insert(1, element("title", title))
    body, lines = soup.article, element("ol")
    contents = element("nav", kind="paper-contents", **{"aria-label": "Contents"})
    if whole:
        below = (element("p", line) for line in about)
        body.append(element("div", element("p", title, kind="title"), *below, kind="title-page"))
        contents.append(element("h1", "Contents"))
        body.append(contents)
    contents.append(lines)
    for chapter in book:
        article, anchor = chapter.article, anchor_of(chapter.name)
        if whole and chapter.part != part:
            part = chapter.part
            place = "part-" + re.sub(r"\W+", "-", part.lower())
            body.append(element("div", element("h1", part, id=place), kind="part"))
            lines.append(_listed("of-part", place, part))
        first = article.find("h1")
        if whole:
            lines.append(_listed("of-chapter", anchor, first or chapter.name))
        for heading in article.find_all("h2") if chapter.numbered or not whole else ():
            holder = heading.find_parent("section")
            if holder is not None and not (whole and _text(heading) in RECURRING):
                lines.append(_listed("of-section", holder.get("id", anchor), heading))
        if not whole and first is not None:
            first.insert_after(contents)
            contents["class"] = "paper-contents of-one"
        if whole and chapter.part:  # its headings stand below that of the part
            for tag in article.find_all(re.compile(r"^h[1-6]$")):
                tag.name = f"h{min(6, int(tag.name[1]) + 1)}"
        kind = "chapter" if whole else "alone"
        body.append(element("div", *list(article.children), id=anchor, kind=kind))
    if any(chapter.solutions for chapter in book):
        solved = element("h1" if whole else "h2", "Solutions of the exercises")
        last = element("div", solved, kind="solutions", id="solutions")
        for chapter in book:
            place = anchor_of(chapter.name)
            if whole and chapter.solutions:
                last.append(element("h2", _text(soup.find(id=place).find(["h1", "h2"]))))
            for exercise, name, cell in chapter.solutions:
                link = element("a", name, href=f"#{exercise or place}")
                last.extend([element("h3", link), cell])
        body.append(last)
        lines.append(_listed("of-part", "solutions", "Solutions of the exercises"))
    return str(soup)


def head_of(html: str) -> str:
    """Return the styles of a built page, and what sets up and loads its mathematics."""
    soup = BeautifulSoup(html, "html.parser")
    kept = soup.head.select('link[rel="stylesheet"]')
    kept += [tag for tag in soup.find_all("script") if "mathjax" in str(tag)[:400].lower()]
    for tag in kept:
        for name in ("href", "src"):
            if tag.get(name):
                tag[name] = tag[name].removeprefix("../")
    return "".join(map(str, kept))


def heading_pages(pdf: Path) -> dict[str, int]:
    """Return on which page, from 1, each anchor that a link leads to stands."""
    import pikepdf

    with pikepdf.open(pdf) as file:
        numbers = {page.objgen: number for number, page in enumerate(file.pages, 1)}
        return {
            unquote(name.removeprefix("/")): numbers[place[0].objgen]
            for name, place in file.Root.Dests.items()
        }


def compress(pdf: Path) -> int:
    """Write a PDF smaller, its tags in compressed streams; return the number of its pages."""
    import pikepdf

    with pikepdf.open(pdf, allow_overwriting_input=True) as file:
        file.save(pdf, object_stream_mode=pikepdf.ObjectStreamMode.generate)
        return len(file.pages)


def print_pdf(html_folder: Path, document: str, out: Path) -> int:
    """Print a document twice, the second time with page numbers; return the number of pages."""
    from playwright.sync_api import sync_playwright

    browser_path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), "")
    if not browser_path:
        raise SystemExit("error: no Chromium on the path and none named by CHROMIUM")
    out.parent.mkdir(parents=True, exist_ok=True)
    page = html_folder / "print.html"
    page.write_text(document, encoding="utf8")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            tab = browser.new_page(color_scheme="light")
            tab.set_default_timeout(600_000)
            tab.goto(page.resolve().as_uri(), wait_until="load")
            if missing := tab.evaluate(SETTLED):
                raise SystemExit(f"error: pictures that are not there: {', '.join(missing)}")
            options = {"path": out, "outline": True, "prefer_css_page_size": True}
            tab.pdf(tagged=False, **options)
            tab.evaluate(PAGES, heading_pages(out))
            tab.pdf(tagged=True, **options)
            browser.close()
    finally:
        page.unlink()
    return compress(out)


def make(html: Path, out: Path, name: str = "", root: Path = ROOT) -> Path:
    """Make the PDF of the book, or of one of its pages, and return its file."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf8"))
    public = read_public(root)
    book = [
        Chapter(p, part.caption, part.is_numbered) for part in read_parts(root) for p in part.pages
    ]
    book = [c for c in book if (c.name == f"book/{name}" if name else c.name not in LEFT_OUT)]
    if not book:
        raise SystemExit(f"error: _toc.yml has no page book/{name}")
    texts = {c.name: (html / f"{c.name}.html").read_text(encoding="utf8") for c in book}
    for chapter in book:
        prepare(chapter, texts[chapter.name], {*texts}, public.site)
    title = config["title"]
    if name and (heading := book[0].article.find("h1")):
        title = _text(heading)
    about = [citation["authors"][0]["name"], f"Version {citation['version']}"]
    about += [address for address in (public.site, public.repository) if address]
    about.append("Without the reference of the API, which the pages on the web have.")
    about.append("Text: CC BY 4.0. Code: Apache License 2.0.")
    document = assemble(book, head_of(texts[book[0].name]), title, about)
    file = out / f"{name or 'multi-head-attention'}.pdf"
    unfinished = out / "print" / file.name  # the first print has no page numbers
    pages = print_pdf(html, document, unfinished)
    unfinished.replace(file)
    print(f"{file}: {pages} pages, {file.stat().st_size / 1e6:.1f} MB")
    return file


if __name__ == "__main__":
    start = time.monotonic()
    make(ROOT / "_build" / "html", ROOT / "_build" / "pdf", "".join(sys.argv[1:2]))
    print(f"printed in {time.monotonic() - start:.0f} s")
