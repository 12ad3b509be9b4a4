"""Figures and exercises are listed, terms linked, equations shown where cited; code is no prose."""

import itertools
import json
import re
from html import unescape

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from tests.book import gates
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


def test_first_sentences():
    assert finding.first_sentence("One, e.g. this.\nTwo.") == "One, e.g. this."
    assert finding.first_sentence("A width of 1.5 is\nenough. Two.") == "A width of 1.5 is enough."
    assert finding.first_sentence("No end") == "No end"
    assert finding.opening("Why? " + "Because. " * 20, 12) == "Why? Because."
    assert finding.opening("Why?", 60) == "Why?"


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
    listed = re.findall(r'href="([\w-]+)\.html#(exercise-\d+)">([^<]*)</a>: (.*?)</p>',
                        article(built_book, "exercises"))  # fmt: skip
    expected = []
    for path in CHAPTERS:
        text = "\n".join(c.source for c in gates.load(path).cells if c.cell_type == "markdown")
        headings = re.findall(r"^### Exercise (\d+): (.*)$", text, re.M)
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


def test_an_exercise_that_prose_names_is_a_link_under_its_number(built_book):
    count = 0
    for path in CHAPTERS:
        shown, chapter = article(built_book, path.stem), NUMBERS.get(path.stem, "")
        cells = [c.source for c in gates.load(path).cells if c.cell_type == "markdown"]
        text = "\n".join(cells)
        for word, n in re.findall(r"(?<!# )\b([Ee]xercise) (\d+)\b", text):
            assert f'href="#exercise-{n}">{word} {chapter}{n}</a>' in shown, path.stem
            count += 1
    assert count > 3


def test_exercises_say_where_to_run_them(built_book):
    for path in CHAPTERS:
        text = article(built_book, path.stem)
        lines = re.findall(r'<p class="where-to-run">(.*?)</p>', text)
        assert len(lines) == ("exercise-1" in ids(text)), path.stem
        for line in lines:
            assert text.index(line) < text.index('id="exercise-1"')
            notebook, how = re.findall(r'href="([^"]+)"', line)
            file = (built_book / "book" / notebook).resolve()
            assert file.read_bytes() == path.read_bytes()
            assert how == "index.html#how-to-run"
    assert "how-to-run" in ids(article(built_book, "index"))


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


def cited_elsewhere(built_book) -> list[tuple[str, str]]:
    """Each page with the address of an equation of another page that it cites."""
    link = r'<a class="reference internal" href="(\w[^"#]*#equation-[^"]+)"'
    return [
        (path.stem, href)
        for path in CHAPTERS
        for href in re.findall(link, article(built_book, path.stem))
    ]


def test_equations_of_other_pages_travel_with_a_page_that_cites_them(built_book):
    cited = cited_elsewhere(built_book)
    for page, href in cited:
        text = (built_book / "book" / f"{page}.html").read_text(encoding="utf8")
        tips = json.loads(re.search(r'id="tips">(.*?)</script>', text)[1])
        name = href.partition("#equation-")[2]
        source = (ROOT / "book" / href.partition(".")[0]).with_suffix(".ipynb").read_text("utf8")
        assert f"$$ ({name})" in source, href
        assert json.dumps(tips[href]["tex"].split()[0])[1:-1] in source
    assert len(cited) > 3


def test_the_next_page_is_announced(built_book):
    pages = [page.removeprefix("book/") for page in toc.toc_pages(ROOT)]
    for page, following in itertools.pairwise(pages[:7]):
        text = (built_book / "book" / f"{page}.html").read_text(encoding="utf8")
        after = text[text.index('class="right-next"') :]
        assert f'href="{following}.html"' in after[:100]
        sentence = re.search(r'<p class="prev-next-sentence">(.*?)</p>', after)[1]
        text = (built_book / "book" / f"{following}.html").read_text(encoding="utf8")
        assert f'<meta name="description" content="{sentence}' in text


def test_the_search_knows_prose_and_names_and_no_code(built_book):
    text = (built_book / "searchindex.js").read_text(encoding="utf8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    names = {name for entries in index["objects"].values() for *_, name in entries}
    assert {"attend", "causal", "attention_weights"} <= names
    # Words that stand in code or in TeX alone.
    assert not {"mathrm", "figsiz", "fontsiz", "linewidth"} & index["terms"].keys()
    assert {"softmax", "queri"} <= index["terms"].keys()


@pytest.mark.needs_browser
def test_a_cited_equation_and_a_term_are_shown_on_focus(built_book, needs_browser):
    from playwright.sync_api import sync_playwright

    elsewhere = [
        (page, f"article a.reference[href='{href}']")
        for page, href in cited_elsewhere(built_book)
        if page == "scale"
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs_browser, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 390, "height": 844})
        for page, link in (
            ("gradients", "article a.reference[href^='#equation-']"),
            ("gradients", "article a.term-link"),
            ("many-devices", "article a.reference:has(> .std-numref)"),
            ("many-devices", "article a.reference[href^='bibliography.html#']"),
            elsewhere[0],  # another is in a fold
        ):
            tab.goto((built_book / "book" / f"{page}.html").as_uri(), wait_until="load")
            tab.evaluate("async () => { await MathJax.startup.promise; }")
            tab.locator(link).first.focus()
            tab.wait_for_selector("#tip:not([hidden])", timeout=10_000)
            assert tab.locator(link).first.get_attribute("aria-describedby") == "tip"
            box = tab.locator("#tip").bounding_box()
            assert box["width"] > 40
            assert box["height"] > 15
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390
            beside = """link => {
              const [tip, at] = [document.getElementById('tip'), link.getClientRects()[0]];
              const box = tip.getBoundingClientRect();
              return box.bottom <= at.top || box.top >= at.bottom;
            }"""
            assert tab.locator(link).first.evaluate(beside), "the link is not covered"
            formulas = "equation" in link
            assert (tab.locator("#tip mjx-container").count() > 0) or not formulas
            # A letter that the page itself does not have is drawn too.
            letters = "all => all.filter(letter => !letter.offsetWidth).length"
            assert tab.locator("#tip mjx-c").evaluate_all(letters) == 0, (page, link)
            if page == "many-devices":
                words = tab.locator("#tip").inner_text().strip()
                figure = f"Fig. {NUMBERS[page]}1 A layer of two heads"
                start = figure if "numref" in link else "Shoeybi, Mohammad"
                assert words.startswith(start)
                seen = tab.locator("#tip img:visible")
                assert seen.count() == ("numref" in link)
                assert tab.locator(link).first.get_attribute("title") is None, "said once"
            tab.keyboard.press("Escape")
            assert tab.locator("#tip").is_hidden()
            assert tab.locator(link).first.get_attribute("aria-describedby") is None
        browser.close()


@pytest.mark.needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_of_this_kind_is_wider_than_the_window(built_book, needs_browser, width):
    from playwright.sync_api import sync_playwright

    pages = ["genindex", "book/figures", "book/exercises", "book/api", "book/api/models-minilm"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs_browser, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 844})
        for page in pages:
            tab.goto((built_book / f"{page}.html").as_uri(), wait_until="load")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
            unnamed = "[...document.querySelectorAll('.bd-links summary:not([aria-label])')].length"
            assert tab.evaluate(unnamed) == 0, page
        browser.close()
