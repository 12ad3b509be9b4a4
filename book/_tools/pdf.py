"""The book on paper: one tagged PDF of all pages, or of one of them: `make pdf [CHAPTER=name]`.

The built pages are put into one document in the order of ``_toc.yml``: light, folds open, links
between them leading within the document, the mathematics typeset by the book's own MathJax. What is
searched and not read is left out of the whole: the reference of the API, which would be a third of
it, and the lists of links.
"""

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_html import template  # noqa: E402
from mha_book_public import read_public  # noqa: E402
from mha_book_toc import read, toc_pages  # noqa: E402

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
NAMED = ("id", "for", "name", "aria-labelledby", "aria-describedby", "headers")
LEFT_OUT = ("book/api", "book/exercises", "book/figures", "book/questions")
# What is for the screen alone.
DROPPED = (
    ".headerlink, .copybtn, script, .d-print-none, .screen-only, .to-code, "
    ".claim-filters, .cite, .questions, .hx details"
)
STYLE = ROOT / "book" / "_static" / "paper.css"


def anchor_of(name: str, fragment: str = "") -> str:
    """Return what an anchor of a page, or the page itself, is called in the document."""
    page = name.removeprefix("book/").replace("/", "-")
    return f"{page}--{fragment}" if fragment else page


def link_target(link: str, page: str, pages: set[str], site: str) -> str:
    """Return where a link of a page leads: within the ``pages`` on paper, to the site, or nowhere.

    ``site`` is the public address of the book, or empty.
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return link
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    target = page if not parts.path else path.removesuffix(".html")
    if target in pages:
        return f"#{anchor_of(target, unquote(parts.fragment))}"
    return f"{site}{path}{'#' + parts.fragment if parts.fragment else ''}" if site else ""


def chapter(name: str, html: str, pages: set[str], site: str) -> Tag:
    """Return the text of a built page as it goes into the document, with names of its own."""
    article = BeautifulSoup(html, "html.parser").select_one("article.bd-article")
    if article is None:
        raise ValueError(f"{name}.html: expected an article, got none")
    for tag in article.select(DROPPED):
        tag.decompose()
    # They look like the text around them, and would be elements of the tags of the PDF.
    for piece in article.select(".highlight :is(.n, .p, .w):not([id])"):
        piece.unwrap()
    for tag in article.find_all(True):
        if tag.name == "details":
            tag["open"] = ""
        for key, value in tag.attrs.items():
            words = value if isinstance(value, list) else value.split()
            if key in NAMED:
                tag[key] = " ".join(anchor_of(name, word) for word in words)
            elif key == "xlink:href" and value.startswith("#"):
                tag[key] = f"#{anchor_of(name, value[1:])}"
            elif key in ("src", "data") and not urlsplit(value).scheme:
                tag[key] = posixpath.normpath(posixpath.join(posixpath.dirname(name), value))
            elif isinstance(value, str):
                tag[key] = re.sub(r"url\(#([^)]+)\)", rf"url(#{anchor_of(name)}--\1)", value)
        if tag.name == "a" and tag.get("href"):
            tag["href"] = link_target(tag["href"], name, pages, site)
            if not tag["href"]:
                del tag["href"]
        tag.attrs.pop("loading", None)
    article.name, article.attrs = "div", {"id": anchor_of(name), "class": "chapter"}
    return article


def head_of(html: str) -> str:
    """Return the styles of a built page, and what sets up and loads its mathematics."""
    soup = BeautifulSoup(html, "html.parser")
    kept = soup.head.select('link[rel="stylesheet"]')
    kept += [tag for tag in soup.find_all("script") if "mathjax" in str(tag)[:400].lower()]
    return "".join(map(str, kept)).replace('"../', '"')


def print_pdf(html_folder: Path, document: str, out: Path) -> int:
    """Print a document, its tags in compressed streams; return the number of pages."""
    import pikepdf
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
            if missing := tab.evaluate("settled()"):
                raise SystemExit(f"error: pictures that are not there: {', '.join(missing)}")
            tab.pdf(path=out, outline=True, tagged=True, prefer_css_page_size=True)
            browser.close()
    finally:
        page.unlink()
    with pikepdf.open(out, allow_overwriting_input=True) as file:
        file.save(out, object_stream_mode=pikepdf.ObjectStreamMode.generate)
        return len(file.pages)


def make(html: Path, out: Path, name: str = "", root: Path = ROOT) -> Path:
    """Make the PDF of the book, or of one of its pages, and return its file."""
    every, site = toc_pages(root), read_public(root).site
    chosen = [p for p in every if (p == f"book/{name}" if name else p not in LEFT_OUT)]
    if not chosen:
        raise SystemExit(f"error: _toc.yml has no page book/{name}")
    texts = {page: (html / f"{page}.html").read_text(encoding="utf8") for page in chosen}
    chapters = [chapter(page, text, {*texts}, site) for page, text in texts.items()]
    title = read(root / "_config.yml")["title"]
    if name:
        title = " ".join(chapters[0].find("h1").get_text().split())
    document = template("paper.html").render(
        title=title, head=head_of(texts[chosen[0]]), style=STYLE.read_text(encoding="utf8"),
        chapters="".join(map(str, chapters)),
    )  # fmt: skip
    file = out / f"{name or 'multi-head-attention'}.pdf"
    pages = print_pdf(html, document, file)
    print(f"{file}: {pages} pages, {file.stat().st_size / 1e6:.1f} MB")
    return file


if __name__ == "__main__":
    make(ROOT / "_build" / "html", ROOT / "_build" / "pdf", "".join(sys.argv[1:2]))
