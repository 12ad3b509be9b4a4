"""The explorer of heads: its directive, and the page in a browser, with mouse, keys and none."""

import re

import numpy as np
import pytest

from tests.book.browsing import DESKTOP, PHONE, WIDER, Visitor
from tests.book.extensions import ROOT, explorer, toc

DOCUMENT = toc.read(ROOT / explorer.DATA)
PAGE = "book/explorer.html"
SAY, CELL, TOKEN = "#explorer .hx-say", "#explorer .hx-cell", "#explorer .hx-pane:visible .hx-token"


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"head": "bert 0.1"}, "model: expected one of smollm2, minilm; got 'bert'"),
        ({"head": "minilm 6.0"}, "head: MiniLM has no head 6.0"),
        ({"head": "minilm", "sentence": "rain"}, "sentence: expected one of thirsty"),
        ({"head": "smollm2", "measure": "luck"}, "measure: expected one of previous token"),
    ],
)
def test_what_is_not_there_is_refused(given, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        explorer.complete(DOCUMENT, {"sentence": "keys", **given})


def test_a_page_without_scripts_has_the_picture_and_its_numbers():
    options = explorer.complete(DOCUMENT, {"head": "smollm2 13.8", "sentence": "keys"})
    text = explorer.still(ROOT, DOCUMENT, options)
    weights = explorer.maps_of(ROOT, DOCUMENT, "smollm2", "keys")["weights"][13, 8]
    assert f"“hang” looks at “keys” {weights[8, 2]:.2f}" in text
    assert text.count("<rect ") == 1 + (weights > 0.004).sum()
    assert text.count("<tr>") == 1 + len(weights)
    assert "SmolLM2, layer 13, head 8" in text


# In a browser.


def weights(model: str, sentence: str, layer: int, head: int) -> np.ndarray:
    return explorer.maps_of(ROOT, DOCUMENT, model, sentence)["weights"][layer, head]


@pytest.fixture
def tab(browser, address):
    visitor = Visitor(browser, address, DESKTOP)
    yield visitor
    assert visitor.outside == []
    assert visitor.wrong == []
    visitor.context.close()


def opened(tab: Visitor, page: str = PAGE):
    """The page, its first explorer awake."""
    tab.see(page)
    first = tab.page.locator("#explorer:not(:has(.hx-still))")
    tab.page.locator("#explorer").scroll_into_view_if_needed()
    first.wait_for()
    tab.page.wait_for_function("document.querySelector('#explorer .hx-say').textContent")
    return tab.page


@pytest.mark.needs_browser
def test_a_journey(tab, browser, address):
    """By mouse and by keys, one head and two, and back to what was seen by its address."""
    page = opened(tab)
    page.select_option("[data-key=sentence]", "keys")
    page.locator(f"{CELL}[data-head='13.8']").click()
    row = weights("smollm2", "keys", 13, 8)
    page.locator(TOKEN).nth(8).click()
    said = page.locator(SAY).inner_text()
    assert said.startswith(f"Layer 13, head 8: “hang” looks at “keys” {row[8, 2]:.2f}")
    shown = page.locator(TOKEN).locator("small").all_inner_texts()
    assert [float(x or 0) for x in shown[:9]] == pytest.approx(row[8, :9].tolist(), abs=0.006)
    assert shown[9:] == [""] * 4  # what comes later is not seen

    page.locator(f"{CELL}[tabindex='0']").focus()
    for key, head in (("ArrowRight", "14.8"), ("ArrowUp", "14.7"), ("ArrowLeft", "13.7")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.head") == head
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator(f"{CELL}[tabindex='0']").count() == 1  # one stop of the Tab key
    page.locator(f"{TOKEN}[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator(f"{TOKEN}[tabindex='0']").count() == 1

    page.select_option("[data-key=sentence]", "thirsty")
    page.locator(f"{CELL}[data-head='13.8']").click()
    page.set_viewport_size(PHONE)
    page.check("[data-key=two]")
    assert not page.evaluate(WIDER)
    sizes = page.locator(f"{TOKEN}, {CELL}, #explorer .hx-chip").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(r => Math.min(r.width, r.height))"
    )
    assert min(sizes) >= 24
    page.set_viewport_size(DESKTOP)
    page.locator("#explorer .hx-which input").nth(1).check()
    page.locator(f"{CELL}[data-head='13.8']").click()
    page.locator("#explorer .hx-pane").nth(1).locator("select").nth(2).select_option("fresh")
    page.locator(TOKEN).nth(9).click()
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('“fresh”')")
    said = page.locator(SAY).inner_text()
    assert "“thirsty” looks at “cat” 0.61" in said
    assert "“fresh” looks at “milk” 0.73" in said

    other = Visitor(browser, address, DESKTOP)
    other.page.goto(page.url)
    other.page.wait_for_function(f"document.querySelector('{SAY}')?.textContent")
    assert other.page.locator(SAY).inner_text() == said
    other.context.close()
