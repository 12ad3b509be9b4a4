"""The book on paper: one document of all pages, its tags, nothing cut off."""

import re
import shutil
from pathlib import Path

import pypdf
import pytest
from bs4 import BeautifulSoup

from tests.book.extensions import ROOT, tool

TOOL = tool("pdf")

TOC = """
root: book/start
parts:
  - caption: Weather
    numbered: 1
    chapters:
      - file: book/rain
      - file: book/more/hail
  - caption: Reference
    chapters:
      - file: book/words
"""
LONG = "x = " + " + ".join(f"term_{n}" for n in range(60)) + "  # the end"
PAGE = """<html><head><link rel="stylesheet" href="{up}_static/book.css">
<link rel="stylesheet" href="{up}_static/face.css"></head><body>
<nav id="bar"></nav><article class="bd-article"><section id="top">
<h1>{title}<a class="headerlink" href="#top">#</a></h1>
<p>The page of {title}. <a href="{up}book/rain.html#wet">wet</a> <a href="#top">up</a>
<a href="{up}genindex.html">index</a> <a href="https://a.example/">a</a></p>
{body}</section></article></body></html>"""
RAIN = f"""<section id="wet"><h2>How <em>wet</em> it is</h2>
<img src="../_images/drop.svg" alt="A drop" loading="lazy"></section>
<section id="exercise"><h3>Exercise 1: a drop</h3><p>Count.</p>
<p class="to-solution"><a href="#cell-s">solution</a></p></section>
<details class="page-code"><summary>Code</summary><div class="highlight"><pre>{LONG}</pre></div>
<span id="cell-s"></span><p>Solution of exercise 1</p>
<div class="cell tag_solution"><pre>seven</pre></div></details>"""
DROP = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><path d="M0 0h9v9z"/></svg>'


@pytest.fixture
def project(tmp_path) -> Path:
    """A book of four pages, as it is built."""
    html = tmp_path / "html"
    for name, title, body in (
        ("start", "The start", ""),
        ("rain", '<span class="section-number">1. </span>Rain', RAIN),
        ("more/hail", "Hail", '<p id="wet">Hard.</p>'),
        ("words", "Words", "<section id='wet'><h2>Wet</h2></section>"),
    ):
        path = html / "book" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = PAGE.format(title=title, body=body, up="../" * (name.count("/") + 1))
        path.write_text(text, encoding="utf8")
    shutil.copytree(ROOT / "book/_static", html / "_static")
    (html / "_images").mkdir()
    (html / "_images" / "drop.svg").write_text(DROP)
    (tmp_path / "_toc.yml").write_text(TOC)
    (tmp_path / "_config.yml").write_text("title: A book of weather")
    (tmp_path / "CITATION.cff").write_text("version: 1.2\nauthors: [{name: Anna}]")
    return tmp_path


@pytest.mark.parametrize(
    "link, site, target",
    [
        ("rain.html#wet", "", "#rain--wet"),
        ("rain.html", "", "#rain"),
        ("#wet", "", "#start--wet"),
        ("more/hail.html#a%20b", "", "#more-hail--a b"),
        ("https://a.example/b", "", "https://a.example/b"),
        ("mailto:a@b.example", "", "mailto:a@b.example"),
        ("../genindex.html#x", "", ""),
        ("../genindex.html#x", "https://a.example/w/", "https://a.example/w/genindex.html#x"),
    ],
)
def test_where_a_link_leads_on_paper(link, site, target):
    pages = {"book/start", "book/rain", "book/more/hail"}
    assert TOOL.link_target(link, "book/start", pages, site) == target


def test_the_pages_stand_in_their_order_in_one_document(project, monkeypatch):
    texts = []
    monkeypatch.setattr(TOOL, "print_pdf", lambda html, text, out: texts.append(text) or 1)
    with pytest.raises(FileNotFoundError):  # nothing was printed
        TOOL.make(project / "html", project / "out", root=project)
    page = BeautifulSoup(texts[0], "html.parser")
    headings = [" ".join(h.get_text().split()) for h in page.find_all(re.compile("^h[1-6]$"))]
    assert headings == [
        "The start", "1. Rain", "How wet it is", "Exercise 1: a drop", "Hail", "Words", "Wet",
    ]  # fmt: skip
    ids = [tag["id"] for tag in page.find_all(id=True)]
    assert len(ids) == len({*ids})
    links = [tag["href"] for tag in page.find_all("a", href=True)]
    assert {link[1:] for link in links if link.startswith("#")} <= {*ids}
    assert {link for link in links if not link.startswith("#")} == {"https://a.example/"}
    assert page.find("link")["href"] == "_static/book.css"
    assert all(fold.has_attr("open") for fold in page.find_all("details"))
    assert not page.select(".headerlink, nav#bar")
    assert not page.find("img").has_attr("loading")


@pytest.mark.needs_browser
def test_a_small_book_is_printed(project):
    reader = pypdf.PdfReader(TOOL.make(project / "html", project / "out", root=project))
    root = reader.trailer["/Root"]
    assert root["/MarkInfo"]["/Marked"]
    assert root["/StructTreeRoot"]["/K"]
    assert root["/Lang"] == "en"
    assert reader.metadata.title == "A book of weather"
    titles = [item.title for item in reader.outline if not isinstance(item, list)]
    assert titles == ["The start", "1. Rain", "Hail", "Words"]
    pages = ["".join(page.extract_text().split()) for page in reader.pages]
    assert len(pages) == 4
    assert "".join(LONG.split()) in pages[1], "the line is whole"
    assert "seven" in pages[1]
