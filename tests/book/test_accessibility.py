"""Every page as axe-core sees it: in both themes, on a desktop and on a phone."""

import pytest

from tests.book.browsing import DESKTOP, PAGES, PHONE, Visitor, axe_findings, served

pytestmark = pytest.mark.needs_browser

EXTRA = ["404.html", "search.html", "genindex.html"]
THEMES = ("light", "dark")
WIDTHS = {"desktop": DESKTOP, "phone": PHONE}


@pytest.fixture(scope="module", params=WIDTHS)
def tab(browser, address, request):
    tab = Visitor(browser, address, WIDTHS[request.param])
    yield tab
    tab.context.close()


@pytest.mark.parametrize("page", PAGES + EXTRA)
def test_nothing_stands_in_a_reader_s_way(tab, page):
    tab.see(page)
    assert [line for theme in THEMES for line in axe_findings(tab, theme)] == []


def test_what_is_wrong_is_found(browser, tmp_path):
    (tmp_path / "bad.html").write_text(
        "<!doctype html><html lang=en data-theme=dark><title>Bad</title>"
        "<style>[data-theme=dark] {background: #222} p {color: #333}</style>"
        "<main><h1>Bad</h1><p>hardly there in the dark</p><img src='gone.png'></main>"
    )
    with served(tmp_path) as address:
        tab = Visitor(browser, address, PHONE)
        tab.see("bad.html")
        in_light, in_dark = axe_findings(tab, "light"), axe_findings(tab, "dark")
        tab.context.close()
    assert len(in_light) == 1
    assert in_light[0].startswith("light: image-alt (critical), 1 times")
    assert any(line.startswith("dark: color-contrast (serious)") for line in in_dark)
