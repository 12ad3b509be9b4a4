"""What the built pages have beyond their text: heads, sized images, folds, the root page."""

import re
from html import unescape

import pytest

from tests.book.extensions import ROOT, page_html, toc

PAGES = toc.toc_pages(ROOT)


@pytest.fixture(scope="module")
def texts(built_book) -> dict[str, str]:
    names = [*PAGES, "search", "genindex"]
    return {name: (built_book / f"{name}.html").read_text(encoding="utf8") for name in names}


def meta(text: str, name: str) -> str:
    found = re.findall(rf'<meta (?:name|property)="{name}" content="([^"]*)"', text)
    assert len(found) == 1, f"{len(found)} of {name}"
    return unescape(found[0])


def test_every_page_has_a_head(texts):
    descriptions = {}
    for name, text in texts.items():
        assert '<html lang="en"' in text, name
        assert "fontawesome.js" not in text, name
        assert text.index("prefers-color-scheme") < text.index('rel="stylesheet"'), "white at first"
        assert ("mathjax/startup.js" in text) >= ('class="math' in text), name
        words = meta(text, "description")
        assert 20 < len(words) <= page_html.DESCRIPTION_LENGTH, (name, words)
        assert not re.search(r"[\\{}$<]", words), (name, words)
        assert meta(text, "og:description") == words
        title = re.findall(r"<title>(.*?)</title>", text, re.S)[0]
        assert unescape(title).startswith(meta(text, "og:title")), name
        assert "og:url" not in text, "there is no public address"
        descriptions[words] = name
    assert len(descriptions) == len(texts), "two pages are described alike"
    assert "mathjax/" not in texts["book/index"], "there is no formula"


def test_images_have_their_size_and_all_but_the_first_come_late(texts):
    count = 0
    for name, text in texts.items():
        images = re.findall(r'<img [^>]*src="[^"]*_images/[^>]*>', text)
        for place, image in enumerate(images):
            assert re.search(r' width="\d+" height="\d+"| style="[^"]*width', image), (name, image)
            assert ('loading="lazy"' in image) == (place > 0), (name, image)
            assert 'decoding="async"' in image
            assert 'class="dark-light"' in image
        count += len(images)
    assert count > 70


def test_folds_are_called_what_is_read_on_them(texts):
    for name, text in texts.items():
        assert "Toggle hidden content" not in text, name
        assert "Show code" not in text, name
    named = r'class="cell-title"[^>]*><strong>([^<]*)</strong>'
    assert {"setup", "one hot"} <= {*re.findall(named, "".join(texts.values()))}


def test_signatures_are_no_lists_without_terms(built_book):
    pages = [path.read_text(encoding="utf8") for path in (built_book / "book/api").glob("*.html")]
    assert any('class="sig-lines"' in text for text in pages)
    assert not any(re.search(r"<dl>\s*<dd>", text) for text in pages)


def test_the_root_page_and_the_page_for_what_is_missing(built_book):
    index = (built_book / "index.html").read_text(encoding="utf8")
    title = re.findall(r"<title>(.*)</title>", index)[0]
    assert title == "Multi-Head Attention: an executable book"
    assert f"url={PAGES[0]}.html" in index
    assert meta(index, "description")
    missing = (built_book / "404.html").read_text(encoding="utf8")
    assert "not found" in missing
    assert "http" not in missing.replace("http-equiv", "")
    assert not (built_book / "sitemap.xml").exists(), "there is no public address"
