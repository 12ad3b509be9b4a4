"""A table of what each page asks of its reader.

    python book/_tools/pages.py [--root FOLDER] [--html FOLDER] [--json FILE]

Words of prose, height in screens of 900 px at a window of 1280 px, figures, lines of open code, the
longest open cell, printed lines and how many of these are True or False. The height is that of the
built page; without a built book or a browser its column is empty.
"""

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_pages import Counts, count_page  # noqa: E402
from mha_book_toc import toc_pages  # noqa: E402

WIDTH, SCREEN = 1280, 900
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# The height of the text once its mathematics is typeset and its pictures are there.
HEIGHT = """async () => {
  for (let n = 0; n < 400; n++) {
    if (!document.querySelector('script[src*="mathjax"]')) break;
    if (window.MathJax && MathJax.startup && MathJax.startup.promise) break;
    await new Promise(r => setTimeout(r, 25));
  }
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  for (const i of document.querySelectorAll('article img')) {
    i.loading = 'eager';
    await i.decode().catch(() => {});
  }
  return document.querySelector('article').getBoundingClientRect().height;
}"""


def source(root: Path, page: str) -> Path:
    """Return the file that a page is made from."""
    notebook = root / f"{page}.ipynb"
    return notebook if notebook.exists() else root / f"{page}.md"


def screens(html: Path, pages: list[str]) -> dict[str, float]:
    """Return the height of each built page in screens; nothing where it cannot be measured."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    built = [page for page in pages if (html / f"{page}.html").exists()]
    if not found or not built:
        return {}
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    heights = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": SCREEN})
        for page in built:
            tab.goto((html / f"{page}.html").as_uri(), wait_until="load")
            heights[page] = tab.evaluate(HEIGHT) / SCREEN
        browser.close()
    return heights


def table(rows: dict[str, Counts], heights: dict[str, float]) -> str:
    """Return the table as text."""
    head = ("page", "words", "screens", "figures", "open code", "longest cell", "printed",
        "booleans", "typed")  # fmt: skip
    body = [
        (
            Path(page).name,
            str(row.words),
            f"{heights[page]:.1f}" if page in heights else "",
            str(row.figures),
            str(row.open_lines),
            f"{row.longest} ({row.longest_cell})" if row.longest else "",
            str(row.printed),
            str(row.booleans),
            str(row.typed),
        )
        for page, row in rows.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = []
    for cells in (head, *body):
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append("  ".join([cells[0].ljust(widths[0]), *list(aligned)[1:]]))
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What each page asks of its reader.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to count")
    parser.add_argument("--html", type=Path, help="the built book (default: _build/html in it)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts here, too")
    arguments = parser.parse_args()
    root, html = arguments.root, arguments.html or arguments.root / "_build" / "html"
    pages = [page for page in toc_pages(root) if source(root, page).exists()]
    rows = {page: count_page(source(root, page)) for page in pages}
    heights = screens(html.resolve(), pages)
    print(table(rows, heights))
    if arguments.json:
        data = {page: {**asdict(row), "screens": heights.get(page)} for page, row in rows.items()}
        arguments.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
