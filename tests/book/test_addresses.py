"""Every address that the book once gave out leads somewhere still."""

import pytest

from tests.book.extensions import ROOT, addresses, toc

STORED, MOVED = toc.read(addresses.STORED), toc.read(ROOT / addresses.MOVED)


@pytest.fixture(scope="module")
def built(built_book) -> dict[str, dict[str, bool]]:
    return addresses.built_pages(built_book)


def test_every_old_address_leads_somewhere(built, built_book):
    labels = addresses.labels_of(built_book)
    found = addresses.address_problems(STORED, built, MOVED, labels)
    assert found == [], "put these into book/moved.yml"


def test_every_entry_of_the_map_is_of_use(built):
    assert addresses.stale_entries(built, MOVED) == []


def test_every_page_loads_the_script_and_the_script_knows_every_claim(built, built_book):
    for page in built:
        text = (built_book / "book" / f"{page}.html").read_text(encoding="utf8")
        assert "_static/moved.js" in text
    labels = addresses.labels_of(built_book)
    for page, ids in built.items():
        for anchor in ids:
            if anchor.startswith(("equation-", "claim-", "fig-")):
                assert labels.get(anchor) == page, anchor


# The gate itself, on a book of two pages.

PAGES = {"rain": {"wet", "claim-c01"}, "snow": {"cold", "equation-melt"}}
LABELS = {"claim-c01": "rain", "equation-melt": "snow"}


def test_what_stands_what_moved_by_label_and_what_is_in_the_map_are_alive():
    old = {"rain": ["wet", "equation-melt", "frost"], "hail": ["ice", "claim-c01"]}
    moved = {"rain": {"frost": "snow#cold"}, "hail": {"": "snow"}}
    assert addresses.address_problems(old, PAGES, moved, LABELS) == []


@pytest.mark.parametrize(
    "old, moved, problem",
    [
        ({"rain": ["frost"]}, {}, "rain#frost: gone"),
        ({"rain": ["equation-lost"]}, {}, "rain#equation-lost: gone"),
        ({"hail": []}, {}, "hail: gone"),
        ({"rain": ["frost"]}, {"rain": {"frost": "snow#warm"}}, "moved to snow#warm, which is not"),
        ({"rain": ["frost"]}, {"rain": {"frost": "fog"}}, "moved to fog, which is not there"),
        ({"hail": ["claim-c01"]}, {"hail": {"claim-c01": "fog"}}, "moved to fog, which is not"),
    ],
)
def test_a_dead_address_is_found(old, moved, problem):
    assert any(problem in line for line in addresses.address_problems(old, PAGES, moved, LABELS))


def test_addresses_are_those_that_a_page_offers(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "rain.html").write_text(
        '<h2 id="wet">Wet<a class="headerlink" href="#wet">#</a></h2>'
        '<a class="headerlink" href="#id3">#</a>'
        '<div id="claim-c01"></div><div id="cell-drop"></div>'
    )
    code = '<h1 id="mha"><a class="headerlink" href="#mha">#</a></h1>'
    (tmp_path / "book" / "api.html").write_text(code)
    rain = {"wet": True, "claim-c01": True, "cell-drop": False}
    assert addresses.built_pages(tmp_path) == {"rain": rain, "api": {"mha": False}}


# In a browser: a page of the built book without a heading that it had.


@pytest.mark.needs_browser
def test_a_browser_follows_in_the_book(built_book, built, needs_browser):
    """An entry of each page of the map, and a claim that is asked for on a page that never had it.

    That every entry names what is there is said without a browser, above.
    """
    from playwright.sync_api import sync_playwright

    labels = addresses.labels_of(built_book)
    claim = next(name for name in labels if name.startswith("claim-"))
    ways = [("status", claim, f"{labels[claim]}#{claim}")]
    ways += [(page, *next(reversed(names.items()))) for page, names in MOVED.items()]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needs_browser, args=["--no-sandbox"])
        tab = browser.new_page()
        arrived = {}
        for page, old, new in ways:
            address = (built_book / "book" / f"{page}.html").as_uri()
            tab.goto("about:blank")  # else a fragment of the same page is no visit
            tab.goto(f"{address}#{old}" if old else address, wait_until="commit")
            target, _, name = new.partition("#")
            end = f"/{target}.html#{name}" if name else f"/{target}.html"
            tab.wait_for_url(f"**{end}", timeout=60_000, wait_until="domcontentloaded")
            there = tab.evaluate("name => !name || !!document.getElementById(name)", name)
            arrived[f"{page}#{old}"] = there
        browser.close()
    assert all(arrived.values()), arrived
