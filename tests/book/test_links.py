"""Every link of the built site and of the repository's own pages leads somewhere."""

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit

from lxml import html

LOADED = {"script", "img", "iframe", "source", "video", "audio", "object", "embed", "track"}
LOADED_RELS = {"stylesheet", "preload", "icon", "modulepreload", "prefetch", "search"}
_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)")
_HOST = re.compile(r"(?:https?:)?//[\w-]+(?:\.[\w-]+)+[^\s\"'<]*")
_NAMESPACES = ("http://www.w3.org/", "https://schema.org", "http://www.apache.org/licenses")


class Page(NamedTuple):
    """The ids of a page, where it leads, and what it loads."""

    ids: set[str]
    links: list[str]
    loaded: list[str]


def read(path: Path) -> Page:
    page = html.parse(path, html.HTMLParser(encoding="utf8")).getroot()
    every = [(tag, link) for tag, _, link, _ in page.iterlinks()]
    loaded = [sizes.split()[0] for each in page.xpath("//@srcset") for sizes in each.split(",")]
    links = [link for _, link in every] + loaded
    for tag, link in every:
        rels = {*tag.get("rel", "").split()} if tag.tag == "link" else set()
        loaded += [link] * bool(tag.tag in LOADED or LOADED_RELS & rels)
    named = _HOST.findall("\n".join(page.xpath("//script/text()")))
    loaded += [url for url in named if not url.startswith(_NAMESPACES)]
    return Page({*page.xpath("//@id"), *page.xpath("//@name")}, links, loaded)


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
