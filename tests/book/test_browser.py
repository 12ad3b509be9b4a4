"""Every page of the built book in a browser, from a local server, all other hosts out of reach."""

import io
import json
import re
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from PIL import Image

from tests.book.browsing import DESKTOP, PAGES, PHONE, SHIFT_AT_MOST, WIDER, Visitor, served
from tests.book.extensions import figures

pytestmark = pytest.mark.needs_browser

EXTRA = ["index.html", "search.html", "genindex.html"]
MATH = """() => {
  const left = [];
  for (const e of document.querySelectorAll('.math, .tex2jax_process'))
    if (!e.querySelector('mjx-container')) left.push(e.textContent.trim().slice(0, 60));
  const walker = document.createTreeWalker(
    document.querySelector('article') || document.body, NodeFilter.SHOW_TEXT);
  const raw = [];
  for (let n = walker.nextNode(); n; n = walker.nextNode()) {
    if (n.parentElement.closest('pre, code, script, style, mjx-container')) continue;
    if (/\\$\\$|\\\\\\(|\\\\\\[|\\\\begin\\{/.test(n.data)) raw.push(n.data.trim().slice(0, 60));
  }
  const errors = [...document.querySelectorAll('mjx-merror, .MathJax_Error')];
  return {left, raw, errors: errors.map(e => e.textContent.slice(0, 60))};
}"""

# Pictures that did not load, and those without alternative text.
IMAGES = """async () => {
  const all = [...document.querySelectorAll('article img')];
  for (const i of all) { i.loading = 'eager'; await i.decode().catch(() => {}); }
  return [...all.filter(i => !i.naturalWidth).map(i => `missing: ${i.src}`),
          ...all.filter(i => !i.alt.trim()).map(i => `no alt text: ${i.src}`)];
}"""

REFERENCES = """() => ({
  links: [...document.querySelectorAll('a[href], link[href], script[src], img[src]')]
    .map(e => e.href || e.src),
  ids: [...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name),
})"""

# Icons that are on the page and have no glyph of their font, or no width.
ICONS = """async () => {
  await document.fonts.ready;
  const shown = [...document.querySelectorAll('i[class*="fa-"], svg[class*="fa-"]')]
    .filter(e => e.getClientRects().length && getComputedStyle(e).visibility === 'visible');
  const good = e => {
    const {content, font} = getComputedStyle(e, '::before');
    return e.getBoundingClientRect().width > 4 && content.length === 3 &&
      document.fonts.check(font, content[1]);
  };
  return {count: shown.length, bad: shown.filter(e => !good(e)).map(e => e.className)};
}"""

# Formulas at which the Tab key stops though they need no scrolling.
STOPS = """() => [...document.querySelectorAll('article mjx-container[tabindex="0"]')]
  .filter(e => e.scrollWidth <= e.clientWidth + 1).length"""

# Buttons, links and folds whose label does not say what is read on them.
MISNAMED = """() => [...document.querySelectorAll(':is(button, a, summary)[aria-label]')]
  .filter(e => e.getClientRects().length && e.innerText.trim())
  .filter(e => !e.getAttribute('aria-label').toLowerCase()
    .includes(e.innerText.trim().toLowerCase().replace(/\\s+/g, ' ')))
  .map(e => `${e.getAttribute('aria-label')}: ${e.innerText.trim()}`)"""

# What of a page would be missing on paper.
ON_PAPER = """() => ({
  theme: document.documentElement.dataset.theme,
  ground: getComputedStyle(document.body).backgroundColor,
  cut: [...document.querySelectorAll('article pre')]
    .filter(e => e.scrollWidth > e.clientWidth + 1 || !e.getClientRects().length)
    .map(e => e.textContent.slice(0, 60)),
  closed: [...document.querySelectorAll('article details pre')]
    .filter(e => e.getBoundingClientRect().height < 10 || !e.checkVisibility({
      contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true}))
    .map(e => e.textContent.slice(0, 60)),
  wide: [...document.querySelectorAll('article table')]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).length,
  bars: [...document.querySelectorAll(
    '.bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .copybtn')]
    .filter(e => e.getClientRects().length).length,
  title: document.querySelector('article h1').getClientRects().length,
  unreadable: [...document.querySelectorAll('article p, article pre, article pre span')]
    .filter(e => getComputedStyle(e).color.match(/\\d+/g).slice(0, 3).every(c => c > 150)).length,
})"""
PAPER = {
    "theme": "light", "ground": "rgb(255, 255, 255)", "cut": [], "closed": [], "wide": 0,
    "bars": 0, "title": 1, "unreadable": 0,
}  # fmt: skip

# The figures of a page: which form is seen, how large, and whether the box scrolls.
FIGURES = """() => [...document.querySelectorAll('.figure-scroll')].map(box => {
  const seen = [...box.querySelectorAll('img')].filter(e => e.getClientRects().length);
  const first = seen[0].getBoundingClientRect();
  return {forms: seen.map(e => e.className), source: seen[0].getAttribute('src'),
          width: first.width, height: first.height, drawn: +seen[0].getAttribute('width'),
          scrolls: box.scrollWidth > box.clientWidth + 2, stop: box.tabIndex};
})"""

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
        "references": tab.page.evaluate(REFERENCES),
        "search": tab.page.locator(SEARCH_BOX).count(),
        "badges": tab.page.locator("article .verdict").all_inner_texts(),
    }
    seen |= {"outside": [*tab.outside], "wrong": [*tab.wrong]}
    return seen


@pytest.fixture(scope="module")
def desktop(browser, address) -> dict[str, dict]:
    """What every page looks like at desktop width."""
    tab = Visitor(browser, address, DESKTOP)
    seen = {page: look(tab, page) for page in PAGES + EXTRA}
    tab.context.close()
    return seen


@pytest.fixture(scope="module")
def phone(browser, address) -> dict[str, dict]:
    """What every page looks like on a phone that prefers the dark theme."""
    tab, seen = Visitor(browser, address, PHONE, "dark"), {}
    for page in PAGES:
        tab.see(page)
        theme = tab.page.evaluate("document.documentElement.dataset.theme")
        seen[page] = {"wider": tab.page.evaluate(WIDER), "theme": theme}
        seen[page]["moves"] = tab.page.evaluate("window.shift") >= SHIFT_AT_MOST
        seen[page]["figures"] = tab.page.evaluate(FIGURES)
        seen[page] |= {"outside": [*tab.outside], "wrong": [*tab.wrong]}
    tab.context.close()
    return seen


@pytest.mark.parametrize("page", PAGES + EXTRA)
def test_page_is_whole(desktop, page):
    seen = desktop[page]
    assert seen["outside"] == [], "the page asks other hosts"
    assert seen["wrong"] == []
    assert seen["math"] == {"left": [], "raw": [], "errors": []}
    assert seen["images"] == []
    assert seen["search"] == 1
    assert seen["icons"]["count"] >= 2
    assert seen["icons"]["bad"] == []
    assert seen["stops"] == 0
    assert seen["misnamed"] == []
    assert seen["shift"] < SHIFT_AT_MOST
    assert all(words.strip() for words in seen["badges"])
    scripts = [link for link in seen["references"]["links"] if "fontawesome.js" in link]
    assert scripts == []


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_heavy(built_book, page):
    """What a reader loads for one page alone: its text and its pictures."""
    path = built_book / page
    pictures = set(re.findall(r'<img\b[^>]* src="([^":]*_images/[^"]+)"', path.read_text("utf8")))
    pictures = {name for name in pictures if "-dark." not in name}  # one form is loaded
    assert sum(x.stat().st_size for x in (path, *(path.parent / p for p in pictures))) < 1.5e6


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_a_phone(phone, page):
    seen = {key: value for key, value in phone[page].items() if key != "figures"}
    assert seen == {"wider": [], "theme": "dark", "moves": False, "outside": [], "wrong": []}


def test_labels_can_be_read_on_a_phone(phone, built_book):
    for page, tab in phone.items():
        for seen in tab["figures"]:
            assert seen["forms"] == ["only-dark"]
            light = seen["source"].replace("-dark.", ".")
            label = figures.facts(((built_book / page).parent / light).read_bytes())[2]
            shown = label * seen["width"] / seen["drawn"]
            assert shown > min(figures.SMALLEST_LABEL, label) - 0.1, (page, seen)
            assert seen["width"] <= seen["drawn"] + 1
            assert seen["scrolls"] == (seen["stop"] == 0), (page, seen)
    assert sum(len(tab["figures"]) for tab in phone.values()) > 70


def test_a_picture_that_scrolls_on_a_phone_can_be_seen_whole(browser, address):
    tab = Visitor(browser, address, PHONE)
    tab.see("book/many-devices.html")
    wide = [seen["scrolls"] for seen in tab.page.evaluate(FIGURES)]
    boxes = tab.page.locator(".figure-whole:visible input")
    assert 0 < sum(wide) == boxes.count()
    for n in range(boxes.count()):
        boxes.nth(n).check()
    assert not any(seen["scrolls"] for seen in tab.page.evaluate(FIGURES))
    tab.page.set_viewport_size(DESKTOP)
    assert boxes.count() == 0
    tab.context.close()


def test_the_theme_switches_figures_and_their_ground_is_the_page(browser, address):
    tab = Visitor(browser, address, DESKTOP, "dark")
    tab.see("book/introduction.html")
    assert {tuple(seen["forms"]) for seen in tab.page.evaluate(FIGURES)} == {("only-dark",)}
    picture = tab.page.locator("img.only-dark").first
    picture.scroll_into_view_if_needed()
    picture.evaluate("e => e.decode()")
    with Image.open(io.BytesIO(picture.screenshot())) as shown:
        corner = shown.convert("RGB").getpixel((3, 3))
    page = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert [int(n) for n in re.findall(r"\d+", page)] == pytest.approx(corner, abs=1)
    tab.page.evaluate("document.documentElement.dataset.theme = 'light'")
    assert {tuple(seen["forms"]) for seen in tab.page.evaluate(FIGURES)} == {("only-light",)}
    tab.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    tab.page.emulate_media(media="print")
    assert {tuple(seen["forms"]) for seen in tab.page.evaluate(FIGURES)} == {("only-light",)}
    assert tab.wrong == []
    tab.context.close()


def test_every_link_and_anchor_leads_somewhere(desktop, address, built_book):
    pages = {page: seen["references"] for page, seen in desktop.items() if page != "index.html"}
    ids = {page: set(found["ids"]) for page, found in pages.items()}
    dead = []
    for page, found in pages.items():
        for target in sorted(set(found["links"])):
            url, anchor = urldefrag(target)
            path = unquote(urlparse(url).path).lstrip("/")
            if not url.startswith(address):
                if urlparse(url).scheme not in ("https", "mailto", "data", "javascript"):
                    dead.append(f"{page}: {target}")
                continue
            missing = path not in ids and not (built_book / path).is_file()
            if missing or (anchor and path in ids and unquote(anchor) not in ids[path]):
                dead.append(f"{page}: {target}")
    assert dead == []


@pytest.mark.parametrize(
    "page, wanted",
    [
        ("claims", {"verdict": "undecided", "scope": "tiny models"}),
        ("papers", {"verdict": "not tested", "year": "2025"}),
    ],
)
def test_a_ledger_is_filtered_on_a_phone(browser, address, page, wanted):
    tab = Visitor(browser, address, PHONE)
    tab.see(f"book/{page}.html")
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
    hidden = next(name for name in rows if name not in fits)
    tab.page.evaluate("name => { location.hash = name }", hidden)
    tab.page.wait_for_selector(f"#{hidden}:visible")
    assert cards.count() == len(rows)
    assert tab.wrong == []
    tab.context.close()


@pytest.mark.parametrize("name, least", [("claims", 50), ("papers", 20)])
def test_a_ledger_is_whole_without_scripts(browser, address, name, least):
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(address + f"book/{name}.html")
    assert page.locator(".claim-card:visible").count() == page.locator(".claim-card").count()
    assert page.locator(".claim-card").count() > least
    context.close()


def test_search_finds_softmax(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    tab.see(PAGES[0])
    tab.page.locator("button.search-button-field:visible").click()
    tab.page.locator("input[type=search]:visible").fill("softmax")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/search.html?q=softmax*")
    # Results are written one after another, pages of terms behind the chapters.
    tab.page.wait_for_selector("#search-results ul.search li a[href*='book/glossary.html']")
    assert tab.outside == []
    assert tab.wrong == []
    tab.context.close()


def test_chapters_come_first_and_excerpts_are_prose(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    for words in ("softmax", "dot_product_attention"):
        tab.see(f"search.html?q={words}")
        tab.page.wait_for_selector("#search-results ul.search li a")
        tab.page.wait_for_function(
            "document.querySelectorAll('#search-results li p.context').length > 2"
        )
        tab.page.wait_for_timeout(300)
        first = tab.page.locator("#search-results ul.search li a").first.get_attribute("href")
        assert "book/api" not in first
        excerpts = tab.page.locator("#search-results li p.context").all_inner_texts()
        unwanted = r"\\\\|import |Show code|\.ipynb|\.md\b|\.pdf"
        assert not [text for text in excerpts if re.search(unwanted, text)]
    assert tab.wrong == []
    tab.context.close()


def test_what_readers_search_for_leads_to_its_chapter(browser, address):
    tab = Visitor(browser, address, PHONE)
    for words, page, title in (
        ("grouped", "grouped-query-attention", "Sharing keys and values"),
        ("GQA", "grouped-query-attention", "Sharing keys and values"),
        ("pruning", "pruning", "Removing heads"),
        ("after pruning", "after-pruning", "After pruning"),
        ("KV cache", "decoding", "Writing one token"),
    ):
        tab.see(f"search.html?q={words}")
        results = tab.page.locator("#search-results ul.search > li > a")
        results.first.wait_for()
        tab.page.wait_for_timeout(300)
        found = results.evaluate_all("all => all.map(a => [a.getAttribute('href'), a.innerText])")
        assert found[0][0] == f"book/{page}.html", (words, found[:5])
        assert found[0][1].endswith(f". {title}")
        assert len({(link, name) for link, name in found}) == len(found), "nothing stands twice"
        assert not [name for _, name in found if re.match(r"(?:\d+\. )?(.+) > \1$", name)]
        assert not tab.page.evaluate(WIDER)
        box = tab.page.locator(".bd-search:visible")
        icon = box.locator(".fa-magnifying-glass").bounding_box()
        typed = box.locator("input[type=search]").evaluate(
            "e => e.getBoundingClientRect().left + parseFloat(getComputedStyle(e).paddingLeft)"
        )
        assert icon["x"] + icon["width"] <= typed, "the icon stands before the words"
    tab.context.close()


def test_matches_can_be_hidden_only_where_there_are_any(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    tab.see("book/bibliography.html")
    for words, seen in (("the", True), ("xylophone", False)):
        tab.page.evaluate("w => localStorage.setItem('sphinx_highlight_terms', w)", words)
        tab.see("book/scale.html")
        link = tab.page.locator("#searchbox .highlight-link")
        link.wait_for(state="attached")
        tab.page.wait_for_timeout(200)
        assert link.is_visible() == seen, words
    tab.context.close()


def test_a_link_to_a_folded_cell_opens_it(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    tab.see("book/scale.html")
    folded = "article span.target[id^='cell-']:has(+ .cell > details)"
    cells = tab.page.locator(folded).evaluate_all("all => all.map(e => e.id)")[:2]
    is_open = "name => document.getElementById(name).nextElementSibling.matches(':has([open])')"
    assert [tab.page.evaluate(is_open, cell) for cell in cells] == [False, False]
    tab.page.evaluate("name => { location.hash = name }", cells[1])
    tab.page.wait_for_timeout(200)
    assert [tab.page.evaluate(is_open, cell) for cell in cells] == [False, True]
    tab.see("search.html")
    tab.see(f"book/scale.html#{cells[0]}")
    assert [tab.page.evaluate(is_open, cell) for cell in cells] == [True, False]
    assert tab.wrong == []
    tab.context.close()


def test_the_search_finds_names_of_the_package(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    for name, page, said in (
        ("attend", "attention-dispatch", True),  # in the prose of chapters too: these come first
        ("KVCache", "multihead-cache", True),  # what a chapter is about
        ("SmolLM2Layer", "models-smollm2", False),  # in code alone
    ):
        tab.see(f"search.html?q={name}")
        address = f"[href*='book/api/{page}.html#mha_book.'][href$='.{name}']"
        results = "#search-results ul.search > li > a"
        tab.page.wait_for_selector(f"{results}{address}", state="attached")
        tab.page.wait_for_timeout(300)
        first = tab.page.locator(results).first.get_attribute("href")
        assert ("book/api/" not in first) == said, first
    assert tab.wrong == []
    tab.context.close()


@pytest.mark.parametrize(
    "page", ["book/scaled-attention.html", "book/claims.html", "book/papers.html"]
)
def test_a_page_is_whole_on_paper(browser, address, page):
    """Printed from a browser in dark colours with every fold closed."""
    tab = Visitor(browser, address, {"width": 690, "height": 1000}, "dark")
    tab.see(page)
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


def test_a_picture_has_its_place_before_it_arrives(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    waiting: list = []
    tab.context.route("**/_images/*", lambda route: waiting.append(route))
    tab.page.goto(address + "book/decoding.html", wait_until="domcontentloaded")
    picture = tab.page.locator("article img").first
    before = picture.bounding_box()
    tab.context.unroute("**/_images/*")
    for route in waiting:
        route.continue_()
    tab.page.wait_for_function("document.querySelector('article img').naturalWidth > 0")
    after = picture.bounding_box()
    assert after["height"] > 100
    assert before["height"] == pytest.approx(after["height"], abs=2)
    tab.context.close()


def test_code_has_88_columns_and_shows_where_it_goes_on(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    tab.see("book/scaled-attention.html")
    columns = tab.page.evaluate(
        """() => {
          const pre = document.querySelector('div.cell:not(:has(details)) .cell_input pre');
          const sign = document.createElement('span');
          sign.textContent = 'x'.repeat(100);
          pre.append(sign);
          const width = sign.getBoundingClientRect().width / 100, style = getComputedStyle(pre);
          sign.remove();
          const room = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
          return (pre.clientWidth - room) / width;
        }"""
    )
    assert columns >= 88
    tab.page.set_viewport_size(PHONE)
    wide = tab.page.locator("article pre.more-right:visible").first
    wide.wait_for()
    assert "gradient" in wide.evaluate("e => getComputedStyle(e).maskImage")
    assert wide.get_attribute("tabindex") == "0"
    wide.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    tab.page.wait_for_selector("article pre.more-left:not(.more-right)")
    tab.context.close()


def test_the_keyboard_is_seen_on_every_button(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    tab.see("book/scaled-attention.html")
    tab.page.keyboard.press("Tab")  # from here on the browser shows the focus
    unseen = tab.page.evaluate(
        """() => [...document.querySelectorAll('button, summary, .bd-header-article label')]
          .filter(e => e.getClientRects().length && (e.focus(), e === document.activeElement))
          .map(e => {
            e.focus();
            const style = getComputedStyle(e);
            return [e.className || e.tagName, style.outlineStyle, parseFloat(style.outlineWidth)];
          })
          .filter(([name, style, width]) => style !== 'solid' || width < 2)"""
    )
    focused = tab.page.evaluate(
        "document.activeElement.matches(':focus-visible') && document.activeElement.tagName"
    )
    assert focused in ("BUTTON", "SUMMARY")
    assert unseen == []
    tab.context.close()


def test_the_checks_notice_what_they_look_for(browser, tmp_path):
    """A page with everything wrong, served in place of the book."""
    (tmp_path / "bad.html").write_text(
        "<!doctype html><body><article><p>$$ x^2 $$</p>"
        "<img src='gone.png'><div style='width:900px;height:300px'>wide</div>"
        "<script src='https://example.org/far.js'></script>"
        "<script>console.error('oh')</script></article><script>setTimeout(() => {"
        "document.querySelector('article').style.marginTop = '400px'}, 300)</script></body></html>"
    )
    with served(tmp_path) as address:
        tab = Visitor(browser, address, PHONE)
        tab.see("bad.html")
        assert tab.page.locator(SEARCH_BOX).count() == 0
        tab.page.wait_for_function(f"window.shift > {SHIFT_AT_MOST}")
        assert len(tab.page.evaluate(IMAGES)) == 2  # it is missing, and has no alternative text
        assert tab.page.evaluate(MATH)["raw"] == ["$$ x^2 $$"]
        assert tab.page.evaluate(WIDER)
        assert tab.outside == ["https://example.org/far.js"]
        assert any("oh" in line for line in tab.wrong)
        assert any(line.startswith("404") for line in tab.wrong)
        tab.context.close()
