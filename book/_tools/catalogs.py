"""Texts for translators: `make catalogs` writes `_build/gettext/book/PAGE.pot`, one for each page.

``--try PAGE`` translates a page into nonsense (every vowel gets an accent), builds the book,
warnings being errors, and says whether its figures, equations and laboratories came through.
"""

import re
import sys
from pathlib import Path

from babel.messages.pofile import read_po, write_po
from bs4 import BeautifulSoup
from jupyter_book.config import get_final_config
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

ROOT = Path(__file__).resolve().parents[2]
POT, TRIED = ROOT / "_build" / "gettext", ROOT / "_build" / "translated"
# What a translator leaves as it is: code, formulas, roles, targets of links, tags, names in braces.
KEPT = re.compile(
    r"`+[^`]*`+|\$[^$]*\$|\{[^}]*\}(?:`[^`]*`)?|\]\([^)]*\)|<[^>]*>|https?://\S+|&\w+;|:\w+:"
)
ACCENTS = str.maketrans("aeiouAEIOU", "áéíóúÁÉÍÓÚ")
COUNTED = ("figure img.only-light", "div.math", "span.math", ".lab", "table", "div.cell")


def build(builder: str, out: Path, **config) -> None:
    """Build the book, warnings being errors."""
    final, _ = get_final_config(
        user_yaml=ROOT / "_config.yml", sourcedir=ROOT, use_external_toc=True,
        cli_config={"latex_individualpages": False, **config},
    )  # fmt: skip
    with patch_docutils(), docutils_namespace():
        app = Sphinx(
            ROOT, None, out, out / ".doctrees", builder, confoverrides=final, warningiserror=True,
            keep_going=True, status=None,
        )  # fmt: skip
        app.build()
    if app.statuscode:
        raise SystemExit(f"error: the {builder} of the book has warnings")


def nonsense(text: str) -> str:
    """Return a text with accents on its vowels, markup as it was."""
    pieces = zip([*KEPT.split(text)], [*KEPT.findall(text), ""], strict=True)
    return "".join(words.translate(ACCENTS) + kept for words, kept in pieces)


def try_page(page: str) -> None:
    """Translate a page into nonsense, build it and compare it with the original."""
    with (POT / "book" / f"{page}.pot").open("rb") as file:
        catalog = read_po(file, locale="de")
    for message in catalog:
        if message.id:
            message.string = nonsense(message.id)
    target = TRIED / "locale" / "de" / "LC_MESSAGES" / "book" / f"{page}.po"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        write_po(file, catalog)
    build("html", TRIED / "html", language="de", gettext_compact=False,
          locale_dirs=[str(TRIED / "locale")])  # fmt: skip
    texts = [f / "book" / f"{page}.html" for f in (ROOT / "_build" / "html", TRIED / "html")]
    before, after = (BeautifulSoup(f.read_text("utf8"), "lxml").article for f in texts)
    found = {c: (len(before.select(c)), len(after.select(c))) for c in COUNTED}
    accents = sum(map(after.get_text().count, "áéíóú"))
    print(f"{page}: {len(catalog)} messages, {accents} accents;", found)
    if not accents or any(a != b for a, b in found.values()):
        raise SystemExit("error: the translated page has lost something")


if __name__ == "__main__":
    if "--try" in sys.argv:
        try_page(sys.argv[-1])
    else:
        build("gettext", POT, gettext_compact=False)
        print(f"{len([*POT.rglob('*.pot')])} catalogs in {POT}")
