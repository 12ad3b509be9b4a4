"""The decks of slides: nothing runs off a slide, no request leaves the host."""

import pytest

from tests.book import browsing
from tests.book.extensions import tool

OFF = browsing.in_page("off")


@pytest.mark.slow
def test_slides_fit_and_ask_nobody(built_book, address, browser) -> None:
    decks = tool("slides").make(built_book)
    asked: list[str] = []
    tab = browser.new_page(viewport={"width": 1280, "height": 720})
    tab.on("request", lambda request: asked.append(request.url))
    for deck in decks:
        tab.goto(f"{address}slides/{deck.name}")
        tab.evaluate(browsing.MATH_READY)
        tab.wait_for_function("Reveal.isReady()")
        for number in range(tab.evaluate("Reveal.getTotalSlides()")):
            tab.evaluate("number => Reveal.slide(number)", number)
            assert tab.evaluate(OFF) == [], (deck.stem, number)
    assert all(url.startswith((address, "data:")) for url in asked)
