"""The book on paper: one tagged PDF of all pages, or of one of them: `make pdf [CHAPTER=name]`.

    python book/_tools/pdf.py [--html FOLDER] [--out FOLDER] [name]

The built pages are put into one document in the order of ``_toc.yml``: light, folds open, links
between them leading within the document, solutions of the exercises at its end, the mathematics
typeset by the book's own MathJax. Chromium prints it twice: the first print says on which page each
heading stands, the second has these numbers in its contents. What is searched and not read is left
out of the whole: the reference of the API, which would be a third of it, and the lists of links.
"""

import argparse
import functools
import os
import posixpath
import re
import shutil
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_public import read_public  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
NAMED = ("id", "for", "name", "aria-labelledby", "aria-describedby", "headers")
RECURRING = {"Exercises", "Summary", "What this does not show", "References"}  # in every chapter
LEFT_OUT = ("book/api", "book/exercises", "book/figures")
# What is for the screen alone, and one of the two names that a fold has on it.
DROPPED = (
    ".headerlink, .copybtn, script, .d-print-none, .screen-only, .fold-verb, summary .expanded, "
    ".claim-filters, .cite, .hx details"
)
STYLE = Path(__file__).with_suffix(".css")
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

    @property
    def anchor(self) -> str:
        """The name of the page in the document."""
        return anchor_of(self.name)


def anchor_of(name: str, fragment: str = "") -> str:
    """Return what an anchor of a page is called in the document."""
    page = name.removeprefix("book/").replace("/", "-")
    return f"{page}--{fragment}" if fragment else page


def chapters(root: Path) -> list[Chapter]:
    """Return the pages of ``_toc.yml`` in order, without their text."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf8"))
    found = [Chapter(toc["root"])]

    def add(entries: list[dict], part: str, numbered: bool) -> None:
        for entry in entries:
            if "file" in entry:
                found.append(Chapter(entry["file"], part, numbered))
            add(entry.get("sections", []), part, numbered)

    for part in toc["parts"]:
        add(part["chapters"], part["caption"], bool(part.get("numbered")))
    return found


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
    title = cell.find_previous(
        lambda tag: tag.name in ("h2", "h3", "h4") or "exercise" in (tag.get("class") or ())
    )
    if title is None:
        return "", "Solution"
    if title.name not in ("h2", "h3", "h4"):
        name = title.find(class_="admonition-title") or title
        return title.get("id") or "", name.get_text(" ", strip=True)
    section = title.find_parent("section")
    return (section.get("id") or "" if section else ""), title.get_text(" ", strip=True)


def plain_classes(style: str) -> set[str]:
    """Return the classes of highlighted code that look like the text around them.

    Every other piece of code is an element of its own in the tags of the PDF.
    """
    rules = r'html\[data-theme="light"\] \.highlight\s*(?:\.(\w+) )?\{([^}]*)\}'
    found = {name: text.split("color:")[-1].strip() for name, text in re.findall(rules, style)}
    return {name for name, color in found.items() if name and color == found.get("")}


def prepare(
    chapter: Chapter, html: str, pages: set[str], site: str, plain: Collection[str] = ()
) -> None:
    """Read the text of a built page into a chapter: its own names, its links, its solutions.

    Args:
        chapter: to be filled.
        html: the built page.
        pages: the documents on the paper.
        site: the public address of the book, or empty.
        plain: classes of code that need no element.
    """
    soup = BeautifulSoup(html, "html.parser")
    article = soup.select_one("article.bd-article")
    if article is None:
        raise ValueError(f"{chapter.name}.html: expected an article, got none")
    for tag in article.select(DROPPED):
        tag.decompose()
    for piece in article.select(".highlight span"):
        if (piece.get("class") or [""])[0] in plain and not piece.get("id"):
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
                tag[name] = re.sub(r"url\(#([^)]+)\)", rf"url(#{chapter.anchor}--\1)", value)
        if tag.name in ("use", "image") and (tag.get("xlink:href") or "").startswith("#"):
            tag["xlink:href"] = f"#{anchor_of(chapter.name, tag['xlink:href'][1:])}"
        if tag.name == "a" and tag.get("href"):
            target = link_target(tag["href"], chapter.name, pages, site)
            tag["href"] = target
            if not target and not tag.get("id"):
                tag.unwrap()
            elif not target:
                del tag["href"]
        for name in ("src", "data"):
            value = tag.get(name)
            if value and not urlsplit(value).scheme:
                folder = posixpath.dirname(chapter.name)
                tag[name] = "/" + posixpath.normpath(posixpath.join(folder, value))
        tag.attrs.pop("loading", None)
    for number, cell in enumerate(article.select(".tag_solution"), 1):
        exercise, name = heading_of(cell)
        anchor = f"{chapter.anchor}--solution-{number}"
        pointer = soup.new_tag("p", attrs={"class": "to-solution"})
        link = soup.new_tag("a", href=f"#{anchor}")
        link.string = "The solution stands at the end."
        pointer.append(link)
        cell.replace_with(pointer)
        cell["id"] = anchor
        chapter.solutions.append((exercise, name, cell))
    chapter.article = article


def shift_headings(article: Tag, by: int) -> None:
    """Make the headings of a text lower ones."""
    for tag in article.find_all(re.compile(r"^h[1-6]$")):
        tag.name = f"h{min(6, int(tag.name[1]) + by)}"


def _text(tag: Tag) -> str:
    return " ".join(tag.get_text().split())


def _listed(soup: BeautifulSoup, kind: str, anchor: str, title: Tag | str) -> Tag:
    """Return a line of the contents."""
    line = soup.new_tag("li", attrs={"class": kind})
    link = soup.new_tag("a", href=f"#{anchor}")
    words = soup.new_tag("span")
    if isinstance(title, str):
        words.string = title
    else:
        words.extend([BeautifulSoup(title.decode_contents(), "html.parser")])
        for inner in words.find_all(id=True):
            del inner["id"]
        for inner in words.find_all("a"):
            inner.unwrap()
    link.append(words)
    line.append(link)
    return line


def assemble(book: list[Chapter], head: str, title: str, about: list[str]) -> str:
    """Return the document.

    Args:
        book: the chapters, prepared; with one alone there are no parts.
        head: what the head of a built page loads.
        title: of the document.
        about: the lines below the title of the whole book.
    """
    whole = len(book) > 1
    soup = BeautifulSoup(
        f'<!doctype html><html lang="en" data-theme="light" data-mode="light"><head>'
        f'<meta charset="utf-8">{head}<style>{STYLE.read_text(encoding="utf8")}</style></head>'
        f'<body><main><article class="bd-article"></article></main></body></html>',
        "html.parser",
    )
    name = soup.new_tag("title")
    name.string = title
    soup.head.insert(1, name)
    body = soup.article
    contents = soup.new_tag("nav", attrs={"class": "paper-contents", "aria-label": "Contents"})
    lines = soup.new_tag("ol")
    if whole:
        front = soup.new_tag("div", attrs={"class": "title-page"})
        for number, line in enumerate([title, *about]):
            paragraph = soup.new_tag("p", attrs={"class": "title"} if not number else {})
            paragraph.string = line
            front.append(paragraph)
        body.append(front)
        heading = soup.new_tag("h1")
        heading.string = "Contents"
        contents.append(heading)
    contents.append(lines)
    if whole:
        body.append(contents)
    part = ""
    for chapter in book:
        if whole and chapter.part != part:
            part = chapter.part
            anchor = "part-" + re.sub(r"\W+", "-", part.lower())
            page = soup.new_tag("div", attrs={"class": "part"})
            heading = soup.new_tag("h1", id=anchor)
            heading.string = part
            page.append(heading)
            body.append(page)
            lines.append(_listed(soup, "of-part", anchor, part))
        first = chapter.article.find("h1")
        section = soup.new_tag("div", id=chapter.anchor)
        section["class"] = "chapter" if whole else "alone"
        if whole:
            lines.append(_listed(soup, "of-chapter", chapter.anchor, first or chapter.name))
        if chapter.numbered or not whole:
            for heading in chapter.article.find_all("h2"):
                holder = heading.find_parent("section")
                listed = not whole or _text(heading) not in RECURRING
                if listed and holder is not None and holder.get("id"):
                    lines.append(_listed(soup, "of-section", holder["id"], heading))
        if not whole and first is not None:
            first.insert_after(contents)
            contents["class"] = "paper-contents of-one"
        if whole and chapter.part:
            shift_headings(chapter.article, 1)
        section.extend(list(chapter.article.children))
        body.append(section)
    if any(chapter.solutions for chapter in book):
        body.append(_solutions(soup, book, whole))
        lines.append(_listed(soup, "of-part", "solutions", "Solutions of the exercises"))
    return str(soup)


def _solutions(soup: BeautifulSoup, book: list[Chapter], whole: bool) -> Tag:
    """Return the last part: every solution under the name of its exercise."""
    part = soup.new_tag("div", attrs={"class": "solutions"}, id="solutions")
    heading = soup.new_tag("h1" if whole else "h2")
    heading.string = "Solutions of the exercises"
    part.append(heading)
    for chapter in book:
        if whole and chapter.solutions:
            title = soup.new_tag("h2")
            found = chapter.article.find(["h1", "h2"]) or soup.find(id=chapter.anchor).find(
                ["h1", "h2"]
            )
            title.string = _text(found)
            part.append(title)
        for exercise, name, cell in chapter.solutions:
            title = soup.new_tag("h3")
            link = soup.new_tag("a", href=f"#{exercise or chapter.anchor}")
            link.string = name
            title.append(link)
            part.extend([title, cell])
    return part


def head_of(html: str) -> str:
    """Return the styles of a built page, and what sets up and loads its mathematics."""
    soup = BeautifulSoup(html, "html.parser")
    kept = soup.head.select('link[rel="stylesheet"]')
    kept += [tag for tag in soup.find_all("script") if "mathjax" in str(tag)[:400].lower()]
    for tag in kept:
        for name in ("href", "src"):
            if tag.get(name):
                tag[name] = "/" + tag[name].removeprefix("../")
    return "".join(map(str, kept))


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


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
    handler = functools.partial(Quiet, directory=str(html_folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            tab = browser.new_page(color_scheme="light")
            tab.set_default_timeout(600_000)
            tab.route(
                f"{address}print.html",
                lambda route: route.fulfill(body=document, content_type="text/html; charset=utf-8"),
            )
            tab.goto(f"{address}print.html", wait_until="load")
            if missing := tab.evaluate(SETTLED):
                raise SystemExit(f"error: pictures that are not there: {', '.join(missing)}")
            options = {"path": out, "outline": True, "prefer_css_page_size": True}
            tab.pdf(tagged=False, **options)
            tab.evaluate(PAGES, heading_pages(out))
            tab.pdf(tagged=True, **options)
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    return compress(out)


def make(html: Path, out: Path, name: str = "", root: Path = ROOT) -> Path:
    """Make the PDF of the book, or of one of its pages, and return its file."""
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf8"))
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf8"))
    public = read_public(root)
    book = chapters(root)
    if name:
        book = [chapter for chapter in book if chapter.name == f"book/{name}"]
        if not book:
            raise SystemExit(f"error: _toc.yml has no page book/{name}")
    else:
        book = [chapter for chapter in book if not chapter.name.startswith(LEFT_OUT)]
    texts = {c.name: (html / f"{c.name}.html").read_text(encoding="utf8") for c in book}
    style = html / "_static" / "pygments.css"
    plain = plain_classes(style.read_text(encoding="utf8")) if style.exists() else set()
    for chapter in book:
        prepare(chapter, texts[chapter.name], {*texts}, public.site, plain)
    title = config["title"]
    if name and (heading := book[0].article.find("h1")):
        title = _text(heading)
    about = [citation["authors"][0]["name"], f"Version {citation['version']}"]
    about += [address for address in (public.site, public.repository) if address]
    about.append("Without the reference of the API, which the pages on the web have.")
    about.append("Text: CC BY 4.0. Code: Apache License 2.0.")
    document = assemble(book, head_of(texts[book[0].name]), title, about)
    file = out / f"{name or 'multi-head-attention'}.pdf"
    (out / "print").mkdir(parents=True, exist_ok=True)
    (out / "print" / file.with_suffix(".html").name).write_text(document, encoding="utf8")
    unfinished = out / "print" / file.name  # the first print has no page numbers
    pages = print_pdf(html, document, unfinished)
    unfinished.replace(file)
    print(f"{file}: {pages} pages, {file.stat().st_size / 1e6:.1f} MB")
    return file


def main() -> None:
    """Make one PDF."""
    parser = argparse.ArgumentParser(description="The book, or one chapter, as a PDF.")
    parser.add_argument("name", nargs="?", default="", help="a page alone, without book/")
    parser.add_argument("--html", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "pdf")
    arguments = parser.parse_args()
    start = time.monotonic()
    make(arguments.html.resolve(), arguments.out, arguments.name)
    print(f"printed in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
