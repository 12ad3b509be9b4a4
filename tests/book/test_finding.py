"""Figures and exercises are listed, terms linked, equations shown where cited; code is no prose."""

import json
import re
from html import unescape

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from mha_book.notation.page import page_text
from tests.book import gates
from tests.book.browsing import PHONE, Visitor
from tests.book.extensions import ROOT, finding, toc

NUMBERS = {
    page.removeprefix("book/"): f"{number}."
    for number, page in enumerate(
        (page for part in toc.read_parts(ROOT) if part.is_numbered for page in part.pages), 1
    )
}
CHAPTERS = [path for path in gates.chapters() if path not in gates.reference()]


def article(built_book, page: str) -> str:
    text = (built_book / "book" / f"{page}.html").read_text(encoding="utf8")
    return text[text.index("<article") : text.index("</article>")]


def ids(text: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', text))


def plain(text: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", text))


def test_a_term_is_linked_once_and_only_in_prose():
    document = publish_doctree(
        "A mask\n======\n\n``mask`` *and* a `mask <https://example.org>`__, then Masks hide "
        "keys.\n\nA mask, a causal mask, unmasked, mask-like, and a key.\n"
    )
    terms = {"mask": "term-mask", "causal mask": "term-causal-mask", "key": "term-key"}
    done = finding.link_terms(document, terms, "glossary.html")
    links = [node for node in document.findall(nodes.reference) if "term-link" in node["classes"]]
    assert [(link.astext(), link["refuri"]) for link in links] == [
        ("Masks", "glossary.html#term-mask"),
        ("keys", "glossary.html#term-key"),
        ("causal mask", "glossary.html#term-causal-mask"),
    ]
    assert done == ["term-mask", "term-key", "term-causal-mask"]
    assert "A mask, a causal mask, unmasked, mask-like, and a key." in document.astext()


# The built book.


def test_every_exercise_is_listed_and_its_link_leads_to_it(built_book):
    """The oracle reads the headings of the notebooks."""
    listed = re.findall(
        r'href="([\w-]+)\.html#(exercise-\d+)">([^<]*)</a>: '
        r"(.*?) \(\d+ minutes, \d+ lines?\)</p>",
        article(built_book, "exercises"),
    )
    expected = []
    for path in dict.fromkeys([*CHAPTERS, *gates.reference()]):
        headings = re.findall(r"^### Exercise (\d+): (.*)$", page_text(path), re.M)
        chapter, shown = NUMBERS.get(path.stem, ""), article(built_book, path.stem)
        named = [(f"exercise-{n}", f"Exercise {chapter}{n}", title) for n, title in headings]
        expected += [(path.stem, *row) for row in named]
        assert {anchor for anchor, *_ in named} <= ids(shown)
        assert re.findall(r"<h3>(Exercise [\d.]+): ", shown) == [label for _, label, _ in named]
        beside = (built_book / "book" / f"{path.stem}.html").read_text(encoding="utf8")
        assert all(beside.count(f"{label}: ") > 1 for _, label, _ in named), "in the contents too"
    assert len(expected) > 70
    found = [(page, anchor, label, plain(title)) for page, anchor, label, title in listed]
    straight = str.maketrans("’", "'")
    assert [[part.translate(straight) for part in row] for row in found] == [
        [re.sub(r"[$`]", "", part) for part in row] for row in expected
    ]


def test_every_numbered_figure_is_listed_under_its_number(built_book):
    listed = re.findall(r'href="([\w-]+)\.html#([^"]+)">(Fig\. [\d.]+)</a>',
                        article(built_book, "figures"))  # fmt: skip
    shown = []
    for page in toc.toc_pages(ROOT):
        name = page.removeprefix("book/")
        for anchor, number in re.findall(
            r'<figure [^>]*id="([^"]+)".*?<span class="caption-number">(Fig\. [\d.]+?) ?</span>',
            article(built_book, name), re.DOTALL,
        ):  # fmt: skip
            shown.append((name, anchor, number.strip()))
    assert listed == shown
    assert len(shown) > 60


def test_terms_are_linked_once_on_a_page_and_their_tips_travel_along(built_book):
    count = 0
    anchors = ids(article(built_book, "glossary"))
    for path in CHAPTERS:
        text = (built_book / "book" / f"{path.stem}.html").read_text(encoding="utf8")
        links = re.findall(r'<a class="term-link[^"]*" href="glossary\.html#([^"]+)"', text)
        assert len(links) == len(set(links)), path.stem
        assert set(links) <= anchors
        tips = json.loads(re.search(r'id="tips">(.*?)</script>', text)[1])
        assert {f"glossary.html#{anchor}" for anchor in links} <= tips.keys()
        assert not re.findall(r"<h\d>[^\n]*term-link", text)
        count += len(links)
    assert count > 10 * len(CHAPTERS)


def test_the_search_knows_prose_and_names_and_no_code(built_book):
    text = (built_book / "searchindex.js").read_text(encoding="utf8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    names = {name for entries in index["objects"].values() for *_, name in entries}
    assert {"attend", "causal", "attention_weights"} <= names
    # Words that stand in code or in TeX alone.
    assert not {"mathrm", "figsiz", "fontsiz", "linewidth"} & index["terms"].keys()
    assert {"softmax", "queri"} <= index["terms"].keys()


@pytest.mark.needs_browser
def test_a_cited_equation_and_a_term_are_shown_on_focus(browser, address):
    tab = Visitor(browser, address, PHONE)
    for page, link in (
        ("gradients", "article a.reference[href^='#equation-']"),
        ("gradients", "article a.term-link"),
        ("many-devices", "article a.reference[href^='bibliography.html#']"),
    ):
        tab.see(f"book/{page}.html")
        cited = tab.page.locator(f"{link}:visible").first
        cited.focus()
        tab.page.wait_for_selector("#tip:not([hidden])", timeout=10_000)
        assert cited.get_attribute("aria-describedby") == "tip"
        box = tab.page.locator("#tip").bounding_box()
        assert box["width"] > 40
        assert box["height"] > 15
        assert 0 <= box["x"] <= 390 - box["width"]
        assert (tab.page.locator("#tip mjx-container").count() > 0) or "equation" not in link
        tab.page.keyboard.press("Escape")
        assert tab.page.locator("#tip").is_hidden()
        assert cited.get_attribute("aria-describedby") is None
    tab.context.close()
