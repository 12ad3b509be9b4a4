"""What the built pages have beyond their text: heads, sized images, folds, the root page."""

import re
from html import unescape
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from PIL import Image

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
        words = meta(text, "description")
        assert 20 < len(words) <= page_html.DESCRIPTION_LENGTH, (name, words)
        assert not re.search(r"[\\{}$<]", words), (name, words)
        assert meta(text, "og:description") == words
        title = re.findall(r"<title>(.*?)</title>", text, re.S)[0]
        assert unescape(title).startswith(meta(text, "og:title")), name
        assert "og:url" not in text, "there is no public address"
        descriptions[words] = name
    assert len(descriptions) == len(texts), "two pages are described alike"


def test_images_have_their_size_and_all_but_the_first_come_late(texts):
    count = 0
    for name, text in texts.items():
        images = re.findall(r'<img [^>]*src="[^"]*_images/[^>]*>', text)
        for place, image in enumerate(images):
            assert re.search(r' width="\d+" height="\d+"| style="[^"]*width', image), (name, image)
            assert ('loading="lazy"' in image) == (place > 0), (name, image)
            assert 'decoding="async"' in image
        count += len(images)
    assert count > 20


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


def finish(folder, address: str) -> None:
    """Write what is written at the end of a build."""
    doctree = publish_doctree("Title\n=====\n\nPart\n----\n\nThe first words of a page.")
    config = SimpleNamespace(
        html_baseurl=address, root_doc="book/one", language="en", html_title="A & B"
    )
    env = SimpleNamespace(found_docs={"book/one", "book/two"}, get_doctree=lambda name: doctree)
    app = SimpleNamespace(
        outdir=folder, config=config, env=env, builder=SimpleNamespace(format="html")
    )
    page_html._finished(app, None)


def test_a_public_address_is_named_once_it_is_there(tmp_path):
    finish(tmp_path, "https://book.example/a")
    site = (tmp_path / "sitemap.xml").read_text(encoding="utf8")
    assert re.findall("<loc>(.*?)</loc>", site) == [
        "https://book.example/a/book/one.html", "https://book.example/a/book/two.html",
    ]  # fmt: skip
    index = (tmp_path / "index.html").read_text(encoding="utf8")
    assert 'rel="canonical" href="https://book.example/a/book/one.html"' in index
    assert "<title>A &amp; B</title>" in index
    assert "https://book.example/a/index.html" in (tmp_path / "404.html").read_text("utf8")
    finish(tmp_path, "")
    assert not (tmp_path / "sitemap.xml").exists()


def described(*children: nodes.Node) -> str:
    document = publish_doctree("")
    document += nodes.section(
        "", nodes.title("", "Title"), nodes.note("", nodes.paragraph("", "No"))
    )
    document[0] += nodes.paragraph("", "", *children)
    return page_html.describe(document)


def test_a_description_is_plain_and_short():
    formula = nodes.math("", r"\sqrt{d_{k}}")
    text = described(nodes.Text("Why are they divided by "), formula, nodes.Text("?"))
    assert text == "Why are they divided by √d_k?"
    sentence = "One sentence of some length that says what the page is about. "
    assert described(nodes.Text(sentence * 5)) == (sentence * 3).strip()
    endless = described(nodes.Text("word " * 100))
    assert endless.endswith("word…")
    assert len(endless) <= page_html.DESCRIPTION_LENGTH


def test_the_size_of_an_image_is_read_from_its_file(tmp_path):
    png, svg, plain = tmp_path / "a.png", tmp_path / "a.svg", tmp_path / "b.svg"
    Image.new("L", (70, 30)).save(png)
    svg.write_text('<?xml version="1.0"?><svg width="72pt" height="36.0pt" viewBox="0 0 1 1"/>')
    plain.write_text('<svg viewBox="0 0 1 1"/>')
    assert [page_html.image_size(file) for file in (png, svg, plain)] == [(70, 30), (96, 48), None]
    body = '<img alt="height: x" src="../_images/a.png" /><img src="b.svg" width="5" />'
    found = page_html.size_images(body, {"a.png": png, "b.svg": plain})
    assert found == (
        '<img decoding="async" width="70" height="30" alt="height: x" src="../_images/a.png" />'
        '<img decoding="async" loading="lazy" src="b.svg" width="5" />'
    )
