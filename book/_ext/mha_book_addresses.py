"""Old addresses stay alive: what moved to another page is found from where it stood.

A fragment never reaches a server, so a page itself has to see that it lacks what is asked for. The
build writes one small script, ``_static/moved.js``, with two maps:

* where each claim, equation and figure of the book stands now: known to the build, whatever moves;
* ``book/moved.yml``: old page -> {old anchor: new page, with #anchor or without}, for headings and
  figures that have another name now. The anchor ``""`` is the page itself, where it is gone.

``tests/book/addresses.json`` has the addresses that were ever given out, ``test_addresses.py``
holds that each of them leads somewhere, and ``book/_tools/addresses.py`` lists those that do not.
"""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import yaml
from docutils import nodes

__all__ = [
    "address_problems",
    "built_pages",
    "collect",
    "labels_of",
    "load_moved",
    "setup",
    "stale_entries",
]

SCRIPT = "moved.js"
# Given out by the names of code and of tests, which are free to change: the page alone is lasting.
BY_CODE = ("api", "evidence")
_KEPT = re.compile(r"(?:claim|ledger|fig)-")
_NUMBERED = re.compile(r"id\d+")

CODE = r"""
(function () {
  "use strict";
  var labels = LABELS;
  var moved = MOVED;
  function follow() {
    if (!/\/book\/[^/]*$/.test(location.pathname)) return;
    var anchor = decodeURIComponent(location.hash.slice(1));
    var page = location.pathname.split("/").pop().replace(/\.html$/, "");
    var here = moved[page] || {};
    if (anchor && document.getElementById(anchor)) return;
    var target;
    if (Object.prototype.hasOwnProperty.call(here, anchor)) target = here[anchor];
    else if (anchor && Object.prototype.hasOwnProperty.call(labels, anchor))
      target = labels[anchor] + "#" + anchor;
    else if (Object.prototype.hasOwnProperty.call(here, "")) target = here[""];
    if (!target) return;
    var parts = target.split("#");
    if (parts[0] === page) location.hash = parts[1] || "";
    else location.replace(parts[0] + ".html" + (parts[1] ? "#" + parts[1] : ""));
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", follow);
  else follow();
  window.addEventListener("hashchange", follow);
})();
"""

GONE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>
<script src="../_static/{script}"></script></head>
<body><p>This page has moved: <a href="{href}">{href}</a>.</p></body></html>
"""


def load_moved(root: Path) -> dict[str, dict[str, str]]:
    """Read ``book/moved.yml``; nothing moved where there is none."""
    path = root / "book" / "moved.yml"
    table = yaml.safe_load(path.read_text(encoding="utf8")) if path.exists() else None
    return {page: dict(anchors) for page, anchors in (table or {}).items()}


class _Anchors(HTMLParser):
    """Finds what can be linked to, and what a page offers as a link."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.offered: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and the links that stand beside headings, equations, figures and terms."""
        values = {name: value or "" for name, value in attrs}
        if anchor := values.get("id"):
            self.ids.add(anchor)
            if _KEPT.match(anchor):
                self.offered.append(anchor)
        if "headerlink" in values.get("class", "").split():
            self.offered.append(values["href"].removeprefix("#"))


def _read(path: Path) -> _Anchors:
    parser = _Anchors()
    parser.feed(path.read_text(encoding="utf8"))
    return parser


def built_pages(html_folder: Path) -> dict[str, set[str]]:
    """Return the ids of every built page, by its short name."""
    return {path.stem: _read(path).ids for path in sorted((html_folder / "book").glob("*.html"))}


def collect(html_folder: Path) -> dict[str, list[str]]:
    """Return the addresses that a built book gives out: page -> its anchors, in order.

    Headings, equations, figures, claims and terms; of pages made from code, the page alone.
    """
    addresses = {}
    for path in sorted((html_folder / "book").glob("*.html")):
        offered = [] if path.stem in BY_CODE else _read(path).offered
        anchors = (anchor for anchor in offered if not _NUMBERED.fullmatch(anchor))
        addresses[path.stem] = list(dict.fromkeys(anchors))
    return addresses


def labels_of(html_folder: Path) -> dict[str, str]:
    """Return the map that the built script has: claim, equation or figure -> its page."""
    text = (html_folder / "_static" / SCRIPT).read_text(encoding="utf8")
    labels: dict[str, str] = json.loads(re.findall(r"^  var labels = (\{.*\});$", text, re.M)[0])
    return labels


def address_problems(
    given_out: dict[str, list[str]],
    pages: dict[str, set[str]],
    moved: dict[str, dict[str, str]],
    labels: dict[str, str],
) -> list[str]:
    """Return the old addresses that lead nowhere, a line each.

    Args:
        given_out: page -> the anchors that it once offered.
        pages: page -> the ids that it has now.
        moved: ``book/moved.yml``.
        labels: claim, equation or figure -> the page where it is now.
    """
    found = []
    for page, anchors in given_out.items():
        for anchor in ["", *anchors]:
            address = f"{page}#{anchor}" if anchor else page
            if page in pages and (not anchor or anchor in pages[page]):
                continue
            here = moved.get(page, {})
            target = here.get(anchor)
            if target is None and anchor in labels:
                target = f"{labels[anchor]}#{anchor}"
            if target is None:
                target = here.get("")
            if target is None:
                found.append(f"{address}: gone, and not in book/moved.yml")
                continue
            new, _, name = target.partition("#")
            if new not in pages or (name and name not in pages[new]):
                found.append(f"{address}: moved to {target}, which is not there")
    return found


def stale_entries(pages: dict[str, set[str]], moved: dict[str, dict[str, str]]) -> list[str]:
    """Return the entries of ``book/moved.yml`` that do nothing, or lead nowhere."""
    found = []
    for page, anchors in moved.items():
        for anchor, target in anchors.items():
            if page in pages and (not anchor or anchor in pages[page]):
                found.append(f"{page}#{anchor} is still there: take it out of book/moved.yml")
            new, _, name = target.partition("#")
            if new not in pages or (name and name not in pages[new]):
                found.append(f"{page}#{anchor}: moved to {target}, which is not there")
    return found


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


def write(app, *_: object) -> None:
    """Write the script, and a page for each that is gone."""
    if app.builder.format != "html":
        return
    moved = load_moved(Path(app.srcdir))
    text = CODE.replace("LABELS", json.dumps(_labels(app.env)))
    text = text.replace("MOVED", json.dumps(moved, sort_keys=True))
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    (static / SCRIPT).write_text(text.lstrip(), encoding="utf8")
    for page, anchors in moved.items():
        if "" in anchors and f"book/{page}" not in app.env.found_docs:
            new, _, name = anchors[""].partition("#")
            href = html.escape(f"{new}.html#{name}" if name else f"{new}.html")
            text = GONE.format(script=SCRIPT, href=href)
            (Path(app.outdir) / "book" / f"{page}.html").write_text(text, encoding="utf8")


def _before(app, env) -> None:
    """Write before the pages are written, so that their link to the script has its checksum."""
    write(app)


def _finished(app, exception) -> None:
    if exception is None:
        write(app)


def setup(app):
    """Register the script and the events."""
    app.add_js_file(SCRIPT)
    app.connect("env-check-consistency", _before)
    app.connect("build-finished", _finished)
