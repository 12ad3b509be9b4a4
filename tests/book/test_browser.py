"""Every page of the built book in a browser, from a local server, all other hosts out of reach."""

import io
import json
import random
import re

import pytest
from PIL import Image

from tests.book import gates
from tests.book.browsing import (
    DESKTOP,
    MATH_READY,
    PAGES,
    PHONE,
    RULES,
    SHIFT_AT_MOST,
    WIDER,
    Visitor,
    axe_findings,
    in_page,
)
from tests.book.extensions import ROOT, figures, finding, toc
from tests.turns import commit, is_turn

pytestmark = pytest.mark.needs_browser

SCREENS = 29  # of a page, at most, at 640 px of prose
EXTRA = ["index.html", "search.html", "genindex.html"]
SAMPLE = ["book/explorer.html", "book/gradients.html", "book/claims.html"]  # in both themes
MATH, IMAGES, ICONS, STOPS, MISNAMED, ON_PAPER, FIGURES = map(
    in_page, ("math", "images", "icons", "stops", "misnamed", "onPaper", "figures")
)

PAPER = {"theme": "light", "cut": [], "closed": [], "plotting": False}

SEARCH_BOX = "input[type=search]:visible, button.search-button-field:visible"


def look(tab: Visitor, page: str) -> dict:
    """Open a page at desktop width and note everything that the tests ask about."""
    tab.see(page)
    seen = {
        "shift": tab.page.evaluate("window.shift"),
        "icons": tab.page.evaluate(ICONS),
        "stops": tab.page.evaluate(STOPS),
        "misnamed": tab.page.evaluate(MISNAMED),
        "math": tab.page.evaluate(MATH),
        "images": tab.page.evaluate(IMAGES),
        "height": tab.page.evaluate("document.querySelector('article')?.offsetHeight"),
        "search": tab.page.locator(SEARCH_BOX).count(),
        "badges": tab.page.locator("article .verdict").all_text_contents(),
    }
    seen |= {"outside": [*tab.outside], "wrong": [*tab.wrong]}
    # Last: it asks for style sheets that are not there.
    seen["axe"] = axe_findings(tab, "light", contrast=is_turn(page))
    return seen


@pytest.fixture(scope="module")
def desktop(browser, address) -> dict[str, dict]:
    """What every page looks like at desktop width."""
    tab = Visitor(browser, address, DESKTOP)
    seen = {page: look(tab, page) | {"wider": tab.page.evaluate(WIDER)} for page in PAGES + EXTRA}
    tab.context.close()
    return seen


@pytest.fixture(scope="module")
def phone(browser, address) -> dict[str, dict]:
    """What every page looks like on a phone that prefers the dark theme; a few, to axe."""
    tab, seen = Visitor(browser, address, PHONE, "dark"), {}
    for page in PAGES:
        tab.see(page)
        theme = tab.page.evaluate("document.documentElement.dataset.theme")
        seen[page] = {"wider": tab.page.evaluate(WIDER), "theme": theme}
        seen[page]["moves"] = tab.page.evaluate("window.shift") >= SHIFT_AT_MOST
        seen[page]["figures"] = tab.page.evaluate(FIGURES)
        seen[page] |= {"outside": [*tab.outside], "wrong": [*tab.wrong]}
        if page in SAMPLE:
            seen[page]["axe"] = [x for theme in RULES for x in axe_findings(tab, theme)]
    tab.context.close()
    return seen


@pytest.mark.parametrize("page", PAGES + EXTRA)
def test_page_is_whole(desktop, page):
    seen = desktop[page]
    assert seen["outside"] == [], "the page asks other hosts"
    assert seen["wrong"] == seen["wider"] == []
    assert seen["math"] == {"left": [], "raw": [], "errors": []}
    assert seen["images"] == []
    assert seen["search"] == 1
    assert seen["icons"]["count"] >= 2
    assert seen["icons"]["bad"] == []
    assert seen["stops"] == 0
    assert seen["misnamed"] == []
    assert seen["shift"] < SHIFT_AT_MOST
    assert all(words.strip() for words in seen["badges"])
    assert seen["axe"] == []
    if page.removesuffix(".html") in gates.budgeted():
        assert 1 < seen["height"] / DESKTOP["height"] <= SCREENS


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_heavy(built_book, page):
    """What a reader loads for one page alone: its text and its pictures."""
    path = built_book / page
    pictures = set(re.findall(r'<img\b[^>]* src="([^":]*_images/[^"]+)"', path.read_text("utf8")))
    assert sum(x.stat().st_size for x in (path, *(path.parent / p for p in pictures))) < 1.5e6


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_a_phone(phone, page):
    seen = {key: value for key, value in phone[page].items() if key != "figures"}
    assert seen.pop("axe", []) == []
    assert seen == {"wider": [], "theme": "dark", "moves": False, "outside": [], "wrong": []}


def test_labels_can_be_read_on_a_phone(phone, built_book):
    for page, tab in phone.items():
        for seen in tab["figures"]:
            assert "invert" in seen["filter"]
            label = figures.facts(((built_book / page).parent / seen["source"]).read_bytes())[2]
            shown = label * seen["width"] / seen["drawn"]
            assert shown > min(figures.SMALLEST_LABEL, label) - 0.1, (page, seen)
            assert seen["width"] <= seen["drawn"] + 1
            assert seen["scrolls"] == (seen["stop"] == 0), (page, seen)
    scrolls = [seen["scrolls"] for tab in phone.values() for seen in tab["figures"]]
    assert len(scrolls) > 70
    assert sum(scrolls) <= 15, "a phone shows nearly all of them whole"


def test_the_theme_switches_figures_and_their_ground_is_the_page(browser, address):
    tab = Visitor(browser, address, DESKTOP, "dark")
    tab.see("book/introduction.html")
    picture = tab.page.locator(".figure-scroll img").first
    picture.scroll_into_view_if_needed()
    picture.evaluate("e => e.decode()")
    with Image.open(io.BytesIO(picture.screenshot())) as shown:
        corner = shown.convert("RGB").getpixel((3, 3))
    page = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert [int(n) for n in re.findall(r"\d+", page)] == pytest.approx(corner, abs=1)
    tab.page.evaluate("document.documentElement.dataset.theme = 'light'")
    assert {seen["filter"] for seen in tab.page.evaluate(FIGURES)} == {"none"}
    tab.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    tab.page.emulate_media(media="print")
    assert {seen["filter"] for seen in tab.page.evaluate(FIGURES)} == {"none"}
    assert tab.wrong == []
    tab.context.close()


def test_a_ledger_is_filtered_on_a_phone(browser, address):
    wanted = {"verdict": "not tested", "year": "2025"}
    tab = Visitor(browser, address, PHONE)
    tab.see("book/papers.html")
    cards = tab.page.locator(".claim-card:visible")
    rows = json.loads(tab.page.locator(".claim-filters").get_attribute("data-rows"))
    assert cards.count() == len(rows)
    for key, value in wanted.items():
        tab.page.locator(f".claim-filters select[name={key}]").select_option(value)
    fits = [name for name, row in rows.items() if wanted.items() <= row.items()]
    assert 0 < len(fits) < len(rows)
    assert cards.evaluate_all("cards => cards.map(card => card.id)") == fits
    assert tab.page.locator(".claim-filters output").inner_text().startswith(f"{len(fits)} of ")
    assert not tab.page.evaluate(WIDER)
    tab.page.reload()
    assert cards.evaluate_all("cards => cards.map(card => card.id)") == fits, "the address keeps it"
    hidden = next(name for name in rows if name not in fits)
    tab.page.evaluate("name => { location.hash = name }", hidden)
    tab.page.wait_for_selector(f"#{hidden}:visible")
    assert cards.count() == len(rows)
    assert tab.wrong == []
    tab.context.close()


def test_what_readers_search_for_leads_to_its_page_and_section(browser, address):
    """The terms of ``book/search.yml`` to their page; of ``searches.yml`` to the section, too."""
    tab, missed = Visitor(browser, address, PHONE), []
    searches = toc.read(ROOT / "tests/book/searches.yml")
    wanted = {term: page for page, terms in finding.terms(ROOT).items() for term in terms}
    wanted |= {name.replace("-", " "): f"book/{name}" for name in ("pruning", "after-pruning")}
    every = sorted({*wanted, *searches})
    for words in (drawn := random.Random(commit()).sample(every, len(every) // 3)):
        tab.see(f"search.html?q={words}")
        results = tab.page.locator("#search-results ul.search > li > a")
        results.first.wait_for()
        tab.page.wait_for_timeout(300)  # the sections come with the excerpts
        found = results.evaluate_all("all => all.map(a => [a.getAttribute('href'), a.innerText])")
        first = found[0][0].partition("#")[0]
        if words in wanted:
            assert first == f"{wanted[words]}.html", (words, found[:5])
        assert len({(link, name) for link, name in found}) == len(found), "nothing stands twice"
        assert not [name for _, name in found if re.match(r"(?:\d+\. )?(.+) > \1$", name)]
        assert not tab.page.evaluate(WIDER)
        excerpts = tab.page.locator("#search-results li p.context").all_inner_texts()
        assert not [text for text in excerpts if re.search(r"\\\\|import |\.ipynb|\.md\b", text)]
        if words in searches:
            page, *heading = searches[words]
            section = found[0][1].partition(" › ")[2].lower()
            is_page = first == f"book/{page}.html"
            if not (is_page and (not heading or heading[0].lower() in section)):
                missed.append((words, found[0]))
            is_marked = tab.page.locator("#search-results li p.context mark").count()
            assert not is_page or is_marked or not heading, words
    assert len(missed) <= max(1, 0.05 * len(drawn)), missed
    assert tab.wrong == []
    tab.context.close()


def test_the_search_says_what_a_file_cannot_do(browser, built_book):
    page = browser.new_page()
    page.goto((built_book / "search.html").as_uri() + "?q=prefill")
    page.get_by_text("no excerpts").wait_for()
    link = page.locator("#search-results ul.search > li > a").first
    assert link.get_attribute("href").startswith("book/decoding.html")
    page.close()


def test_a_link_to_the_code_of_a_figure_opens_the_fold_at_the_end(browser, built_book, address):
    """By the keyboard; for an address from elsewhere; without scripts, from a file."""
    tab = Visitor(browser, address, DESKTOP)
    tab.see("book/scale.html")
    link = tab.page.locator("article .to-code a").first
    anchor = link.get_attribute("href")
    assert not tab.page.locator(anchor).is_visible()
    link.focus()
    tab.page.keyboard.press("Enter")
    tab.page.locator(anchor).wait_for(state="visible")
    tab.see("search.html")
    tab.see(f"book/scale.html{anchor}")
    assert tab.page.locator(anchor).is_visible()
    assert tab.wrong == []
    tab.context.close()
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto((built_book / "book" / "scale.html").as_uri())
    assert not plain.locator(anchor).is_visible()
    plain.locator("article .to-code a").first.click()
    plain.locator(anchor).wait_for(state="visible")
    plain.context.close()


def test_a_page_is_whole_on_paper(browser, address):
    """Printed from a browser in dark colours with every fold closed."""
    tab = Visitor(browser, address, {"width": 690, "height": 1000}, "dark")
    tab.see("book/scaled-attention.html")
    tab.page.emulate_media(media="print")
    folds = tab.page.locator("details[open]").count()
    tab.page.evaluate(
        f"addEventListener('beforeprint', () => {{ window.paper = ({ON_PAPER})(); }})"
    )
    assert tab.page.pdf(format="A4").startswith(b"%PDF")
    assert tab.page.evaluate("window.paper") == PAPER
    assert tab.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.page.locator("details[open]").count() == folds, "folds stay as they were"
    by_style_alone = tab.page.evaluate(ON_PAPER)
    assert by_style_alone == PAPER | {"theme": "dark"}
    tab.context.close()


def test_a_question_is_answered_by_keyboard_and_the_answer_kept(browser, address):
    tab = Visitor(browser, address, PHONE, "dark")
    tab.see("book/scale.html")
    fold = tab.page.locator("details.questions")
    fold.locator("summary").first.press("Enter")
    form = fold.locator("form").nth(1)
    form.get_by_role("radio", name="W_Q eight times smaller").press("Space")
    tab.page.keyboard.press("Enter")
    said = form.get_by_role("status").inner_text()
    assert said.startswith("Right. ")
    assert tab.page.evaluate(WIDER) == []
    tab.page.reload()
    tab.page.evaluate(MATH_READY)
    assert fold.locator("summary .score").inner_text() == "1 right of 1 answered"
    fold.locator("summary").first.press("Enter")
    assert form.get_by_role("status").inner_text() == said
    assert (tab.wrong, tab.outside) == ([], [])
    assert [axe_findings(tab, theme, "details.questions") for theme in RULES] == [[], []]
    tab.page.emulate_media(media="print")
    assert not fold.is_visible()
    tab.context.close()
