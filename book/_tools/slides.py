"""Slides from the built pages: `book/slides/NAME.yml` -> `_build/html/slides/NAME.html`.

A deck begins with what its chapter promises and ends with what to remember, both from the page.
Between them is a list of slides: ``title``, ``points`` (Markdown, mathematics between dollars,
``{glue NAME}`` for a number of the chapter), ``show`` (the id of a figure, an equation, or a cell
of the page) and ``notes`` for the speaker. The rest is reveal.js, from requirements/slides.txt.
"""

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_html import template  # noqa: E402
from mha_book_ledger import glued_values  # noqa: E402
from mha_book_toc import read  # noqa: E402

PINNED, REVEAL = ROOT / "requirements" / "slides.txt", ROOT / "_build" / "reveal"
FILES = ("dist/reset.css", "dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js", "LICENSE")
DROPPED = ".headerlink, .figure-whole, .eqno, .to-code, .copybtn, .caption-number"
MARKDOWN = MarkdownIt().use(
    dollarmath_plugin, renderer=lambda tex, options: rf"\({html.escape(tex)}\)"
)


def tidy(tag: Tag) -> str:
    """Return a piece of a page as a slide has it: without links and anchors."""
    for each in tag.select(DROPPED):
        each.decompose()
    for link in tag.find_all("a"):
        link.unwrap()
    for each in [tag, *tag.find_all(id=True)]:
        each.attrs.pop("id", None)
    return str(tag)


def piece(page: BeautifulSoup, anchor: str) -> str:
    """Return a figure, an equation or a cell of a page."""
    if (found := page.find(id=anchor)) is None:
        raise SystemExit(f"error: slides: no {anchor!r} on the page {page.h1.get_text()!r}")
    if anchor.startswith("cell-"):
        found = found.find_next("div", class_="cell")
        if found.table:  # what built it is of no use on a slide
            for code in found.select(".cell_input"):
                code.decompose()
    return tidy(found)


def is_tall(shown: str) -> bool:
    """Say whether a piece goes beside the points: code, or a picture that is hardly wide."""
    size = re.search(r'<img [^>]*\bheight="(\d+)"[^>]*\bwidth="(\d+)"', shown)
    return "cell_input" in shown or bool(size and int(size[2]) < 1.4 * int(size[1]))


def slide(title: str, body: str, notes: str = "", kind: str = "") -> str:
    """Return one slide."""
    aside = f'<aside class="notes">{MARKDOWN.render(notes)}</aside>' if notes else ""
    inner = f'<h2>{title}</h2><div class="body">{body}</div>{aside}'
    return f'<section class="{kind}">{inner}</section>'


def deck(name: str, source: BeautifulSoup, slides: list[dict]) -> str:
    """Return the slides of a chapter, from its built page and its list."""
    glued = glued_values(ROOT / f"book/{name}.ipynb")

    def text(words: str) -> str:
        return MARKDOWN.renderInline(re.sub(r"\{glue (\S+)\}", lambda m: str(glued[m[1]]), words))

    heading = source.h1
    for each in heading.select(".headerlink, .section-number"):
        each.decompose()
    title = heading.get_text().strip()
    goals = source.find("p", string="After this chapter you can").find_next("ul")
    remember = source.find(id=["what-to-remember", "summary"]).find("ul")
    done = [slide(title, f"<p>After this chapter you can</p>{tidy(goals)}", kind="first")]
    for each in slides:
        points = "".join(f"<li>{text(point)}</li>" for point in each.get("points", ()))
        shown = f'<div class="shown">{piece(source, each["show"])}</div>' if "show" in each else ""
        kind = "beside" if is_tall(shown) else "below"
        kind += " long" if shown.count("\n") > 17 else ""
        listed = f"<ul>{points}</ul>" if points else ""
        done.append(slide(text(each["title"]), listed + shown, each.get("notes", ""), kind))
    page = f'<p class="page">The chapter: <a href="../book/{name}.html">{title}</a></p>'
    done.append(slide("What to remember", tidy(remember) + page, kind="last"))
    return template("deck.html").render(title=title, slides="".join(done))


def make(folder: Path) -> list[Path]:
    """Write the decks of a built book whose page or list is newer, and return all of them."""
    reveal, decks = folder / "_static" / "reveal", []
    if not REVEAL.exists() or REVEAL.stat().st_mtime < PINNED.stat().st_mtime:
        shutil.rmtree(REVEAL, ignore_errors=True)
        install = ["uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target"]
        command = [sys.executable, "-m", *install, str(REVEAL), "-r", str(PINNED)]
        subprocess.run([*command, "--python", sys.executable], check=True)
    reveal.mkdir(exist_ok=True)
    for file in FILES:
        shutil.copy(REVEAL / "sphinx_revealjs" / "_static" / "revealjs" / file, reveal)
    (folder / "slides").mkdir(exist_ok=True)
    for source in sorted((ROOT / "book" / "slides").glob("*.yml")):
        page, out = (folder / name / f"{source.stem}.html" for name in ("book", "slides"))
        decks.append(out)
        times = [path.stat().st_mtime for path in (page, source, Path(__file__))]
        if not out.exists() or out.stat().st_mtime < max(times):
            text = page.read_text(encoding="utf8")
            start, end = text.index("<article"), text.find('<details class="page-code"')
            soup = BeautifulSoup(text[start:end], "lxml")
            out.write_text(deck(source.stem, soup, read(source)), encoding="utf8")
    return decks


if __name__ == "__main__":
    made = make(ROOT / "_build" / "html")
    print(f"{len(made)} decks of slides in {made[0].parent}")
