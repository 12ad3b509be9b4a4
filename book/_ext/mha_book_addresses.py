"""Old addresses stay alive: what moved to another page is found from where it stood.

A fragment never reaches a server, so a page itself has to see that it lacks what is asked for. The
build writes one small script, ``_static/moved.js``, with two maps:

* where each claim, equation and figure of the book stands now: known to the build, whatever moves;
* ``book/moved.yml``: old page -> {old anchor: new page, with #anchor or without}, for headings and
  figures that have another name now. The anchor ``""`` is the page itself, where it is gone.

``tests/book/addresses.json`` has the addresses that were ever given out. Of the built book:

    python book/_ext/mha_book_addresses.py              the old addresses that lead nowhere
    python book/_ext/mha_book_addresses.py --collect    add what it gives out (at a release)
"""

import json
import re
import sys
from pathlib import Path

from docutils import nodes
from mha_book_html import template
from mha_book_toc import read

ROOT = Path(__file__).parents[2]
SCRIPT, MOVED = "moved.js", "book/moved.yml"
STORED = ROOT / "tests" / "book" / "addresses.json"
# Given out by the names of code and of tests, which are free to change: the page alone is lasting.
BY_CODE = ("api", "evidence")
_KEPT = re.compile(r"(?:claim|ledger|fig)-")


def built_pages(html_folder: Path) -> dict[str, dict[str, bool]]:
    """Return the ids of every built page, and whether the page gives each out as an address.

    Those are headings, equations, figures, claims and terms; of pages made from code, none.
    """
    pages = {}
    for path in sorted((html_folder / "book").glob("*.html")):
        text, page = path.read_text(encoding="utf8"), path.stem
        links = {*re.findall(r'class="headerlink" href="#(?!id\d+")([^"]+)"', text)}
        if "<title>This page has moved</title>" not in text:
            pages[page] = {
                name: page not in BY_CODE and (name in links or bool(_KEPT.match(name)))
                for name in re.findall(r'\bid="([^"]+)"', text)
            }
    return pages


def labels_of(html_folder: Path) -> dict[str, str]:
    """Return the map that the built script has: claim, equation or figure -> its page."""
    text = (html_folder / "_static" / SCRIPT).read_text(encoding="utf8")
    return json.loads(re.findall(r"^  var labels = (\{.*\});$", text, re.M)[0])


def _is_there(address: str, pages: dict[str, dict[str, bool]]) -> bool:
    page, _, anchor = address.partition("#")
    return page in pages and (not anchor or anchor in pages[page])


def address_problems(given_out, pages, moved, labels) -> list[str]:
    """Return the old addresses that lead nowhere, a line each.

    ``given_out`` has the anchors that each page once offered, ``pages`` the ids that it has now.
    """
    found = []
    for page, anchors in given_out.items():
        here = moved.get(page, {})
        for anchor in ["", *anchors]:
            address = f"{page}#{anchor}" if anchor else page
            target = f"{labels[anchor]}#{anchor}" if anchor in labels else here.get("")
            target = here.get(anchor, target)
            if _is_there(address, pages):
                continue
            if target is None:
                found.append(f"{address}: gone, and not in book/moved.yml")
            elif not _is_there(target, pages):
                found.append(f"{address}: moved to {target}, which is not there")
    return found


def stale_entries(pages, moved) -> list[str]:
    """Return the entries of ``book/moved.yml`` that do nothing, or lead nowhere."""
    return [
        f"{page}#{anchor}: still there, or moved to {target}, which is not"
        for page, anchors in moved.items()
        for anchor, target in anchors.items()
        if _is_there(f"{page}#{anchor}", pages) or not _is_there(target, pages)
    ]


def _labels(env) -> dict[str, str]:
    """Return where claims, equations and figures stand."""
    labels = {
        nodes.make_id(f"equation-{name}"): Path(docname).name
        for name, (docname, _) in env.get_domain("math").equations.items()
    }
    for docname, anchor in env.get_domain("std").anonlabels.values():
        if _KEPT.match(anchor):
            labels[anchor] = Path(docname).name
    return dict(sorted(labels.items()))


def write(app, why: object) -> None:
    """Write the script, and a page for each that is gone.

    Before the pages are written, so that their link to the script has its checksum, and at the end.
    """
    if app.builder.format != "html" or isinstance(why, Exception):
        return
    moved = read(Path(app.srcdir, MOVED))
    maps = {"labels": json.dumps(_labels(app.env)), "moved": json.dumps(moved, sort_keys=True)}
    made = {Path(app.outdir, "_static", SCRIPT): template(SCRIPT).render(maps) + "\n"}
    for page, anchors in moved.items():
        if "" in anchors and f"book/{page}" not in app.env.found_docs:
            new, sign, name = anchors[""].partition("#")
            text = template("gone.html").render(address=f"{new}.html{sign}{name}")
            made[Path(app.outdir, "book", f"{page}.html")] = text + "\n"
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)  # the first time, before pages are written
        path.write_text(text, encoding="utf8")


def setup(app):
    """Register the script and the events."""
    app.add_js_file(SCRIPT)
    app.connect("env-check-consistency", write)
    app.connect("build-finished", write)


def main() -> int:
    """List what leads nowhere, or add to the list what the build gives out."""
    built, stored, moved = ROOT / "_build" / "html", read(STORED), read(ROOT / MOVED)
    pages = built_pages(built)
    if "--collect" in sys.argv:
        for page, ids in pages.items():
            given = [name for name, is_given in ids.items() if is_given]
            stored[page] = list(dict.fromkeys([*stored.get(page, []), *given]))
        STORED.write_text(f"{json.dumps(stored, indent=0, sort_keys=True)}\n", encoding="utf8")
        return 0
    found = address_problems(stored, pages, moved, labels_of(built)) + stale_entries(pages, moved)
    print("\n".join(found) or "every address leads somewhere")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
