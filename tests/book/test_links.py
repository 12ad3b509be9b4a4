"""Every link of the built site and of the repository's own pages leads somewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LINKS = {"href", "src", "action", "data", "poster"}
LOADED = {"script", "img", "iframe", "source", "video", "audio", "object", "embed", "track"}
LOADED_RELS = {"stylesheet", "preload", "icon", "modulepreload", "prefetch", "search"}
_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)")
_NAMESPACES = ("http://www.w3.org/", "https://schema.org", "http://www.apache.org/licenses")


class Page(HTMLParser):
    """The ids of a page, where it leads, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.in_script = tag == "script"
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        found = [values[name] for name in LINKS & values.keys()]
        sources = (piece.split() for piece in values.get("srcset", "").split(","))
        found += [source[0] for source in sources if source]
        if tag == "meta" and values.get("http-equiv") == "refresh":
            found.append(values["content"].partition("url=")[2])
        if tag in LOADED or (tag == "link" and LOADED_RELS & set(values.get("rel", "").split())):
            self.loaded += found
        self.links += found

    def handle_endtag(self, tag: str) -> None:
        self.in_script = False

    def handle_data(self, data: str) -> None:
        if self.in_script:
            found = re.findall(r"(?:https?:)?//[\w-]+(?:\.[\w-]+)+[^\s\"'<]*", data)
            self.loaded += [url for url in found if not url.startswith(_NAMESPACES)]


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf8"))
    return page


def problems(site: Path) -> list[str]:
    """Return the links that lead nowhere, and what is asked of other hosts; a line each."""
    pages = {path: read(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site)
        found += [f"{here}: asks {url}" for url in page.loaded if urlsplit(url).netloc]
        for link in page.links:
            address, fragment = urldefrag(link)
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{here}: {link}: no such file")
            elif fragment and target in pages and unquote(fragment) not in pages[target].ids:
                found.append(f"{here}: {link}: no such anchor")
    for style in site.rglob("*.css"):
        here = style.relative_to(site)
        for url in _URL.findall(style.read_text(encoding="utf8")):
            if urlsplit(url).netloc:
                found.append(f"{here}: asks {url}")
            elif url.startswith(("data:", "#")):
                continue
            elif not (style.parent / urlsplit(url).path).is_file():
                found.append(f"{here}: {url}: no such file")
    return sorted(set(found))


def test_nothing_on_the_site_is_dead_and_no_page_asks_another_host(built_book):
    assert problems(built_book) == []


def test_the_search_finds_what_is_dead(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.html").write_text(
        '<a href="b/c.html#x">1</a><a href="b/c.html?q=1#%C3%A4">2</a><a href="#y">3</a>'
        '<a href="d.html">4</a><img srcset="e.png 1x, b/c.html 2x"><a href="https://a.example">5</a>'
        '<script src="//cdn.example/a.js"></script><script>fetch("https://b.example/x")</script>'
        '<link rel="canonical" href="https://c.example/"><meta http-equiv="refresh" '
        'content="0; url=f.html"><a href="mailto:a@b.example">6</a>'
    )
    (tmp_path / "b" / "c.html").write_text('<p id="ä"></p><a href="../a.html">back</a>')
    (tmp_path / "s.css").write_text("a{b:url(g.png)} c{d:url(data:x)} e{f:url('//h.example/i')}")
    assert problems(tmp_path) == [
        "a.html: #y: no such anchor",
        "a.html: asks //cdn.example/a.js",
        "a.html: asks https://b.example/x",
        "a.html: b/c.html#x: no such anchor",
        "a.html: d.html: no such file",
        "a.html: e.png: no such file",
        "a.html: f.html: no such file",
        "s.css: asks //h.example/i",
        "s.css: g.png: no such file",
    ]
