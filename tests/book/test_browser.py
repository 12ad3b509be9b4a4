"""Every page of the built book in a browser, from a local server, all other hosts out of reach."""

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from tests.book.extensions import ROOT, ledger

pytestmark = pytest.mark.needs_browser

PAGES = [f"{page}.html" for page in ledger.toc_pages(ROOT)]
EXTRA = ["index.html", "search.html", "genindex.html"]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--no-first-run",
]

# Waits until MathJax, if the page has it, has typeset everything.
MATH_READY = """async () => {
  if (!document.querySelector('script[src*="mathjax"]')) return true;
  for (let n = 0; n < 200 && !(window.MathJax && MathJax.startup && MathJax.startup.promise); n++)
    await new Promise(r => setTimeout(r, 25));
  await MathJax.startup.promise;
  return true;
}"""

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

# Relative luminance and contrast as WCAG 2 defines them, on the colours that are painted.
CONTRAST = """selectors => {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', {willReadFrequently: true});
  const paint = layers => {
    context.fillStyle = '#fff';
    context.fillRect(0, 0, 1, 1);
    for (const colour of layers) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const out = [];
  for (const selector of selectors)
    for (const e of document.querySelectorAll(selector)) {
      const layers = [];
      for (let p = e; p; p = p.parentElement) layers.unshift(getComputedStyle(p).backgroundColor);
      const back = paint(layers), front = paint([...layers, getComputedStyle(e).color]);
      const [low, high] = [luminance(back), luminance(front)].sort((a, b) => a - b);
      out.push({selector, text: e.textContent.trim().slice(0, 40), back: luminance(back),
                ratio: (high + 0.05) / (low + 0.05)});
    }
  return out;
}"""

WIDER = """() => {
  const page = document.documentElement;
  if (page.scrollWidth <= window.innerWidth) return [];
  return [...document.querySelectorAll('article *')]
    .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1)
    .slice(0, 5)
    .map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`)
    .concat([`page: ${page.scrollWidth} px`]);
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

SEARCH_BOX = "input[type=search]:visible, button.search-button-field:visible"

PLACES = [
    "article p", "article li", "article h1", "article h2", "article a:not(.headerlink)",
    "article td", "article .verdict", "article .claim p", "article pre span", "article figcaption",
]  # fmt: skip


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that does not write to the terminal."""

    def log_message(self, format: str, *arguments) -> None:
        pass


@pytest.fixture(scope="module")
def address(built_book) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(built_book))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser(needs_browser):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=needs_browser, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Visitor:
    """A browser tab that reaches one address alone and notes what goes wrong."""

    def __init__(self, browser, address: str, viewport: dict, scheme: str = "light"):
        self.address, self.outside, self.wrong = address, [], []
        self.context = browser.new_context(
            viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
        )
        self.context.route("**/*", self._gate)
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("response", self._answered)

    def _gate(self, route) -> None:
        url = route.request.url
        if url.startswith((self.address, "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(url)
            route.abort()

    def _heard(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console {message.type}: {message.text}")

    def _answered(self, response) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.status}: {response.url}")

    def see(self, page: str) -> None:
        """Open a page, wait for its mathematics, forget what earlier pages did wrong."""
        self.outside.clear()
        self.wrong.clear()
        self.page.goto(self.address + page, wait_until="load")
        if page == "index.html":
            self.page.wait_for_url("**/book/introduction.html")
        self.page.evaluate(MATH_READY)


def look(tab: Visitor, page: str) -> dict:
    """Open a page at desktop width and note everything that the tests ask about."""
    tab.see(page)
    seen = {
        "icons": tab.page.evaluate(ICONS),
        "stops": tab.page.evaluate(STOPS),
        "misnamed": tab.page.evaluate(MISNAMED),
        "math": tab.page.evaluate(MATH),
        "images": tab.page.evaluate(IMAGES),
        "references": tab.page.evaluate(REFERENCES),
        "search": tab.page.locator(SEARCH_BOX).count(),
        "badges": tab.page.locator("article .verdict").all_inner_texts(),
    }
    for theme in ("light", "dark"):
        tab.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        seen[theme] = tab.page.evaluate(CONTRAST, PLACES)
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
    scripts = [link for link in seen["references"]["links"] if "fontawesome.js" in link]
    assert scripts == []


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_a_phone(phone, page):
    assert phone[page] == {"wider": [], "theme": "dark", "outside": [], "wrong": []}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_text_is_readable(desktop, page, theme):
    seen = desktop[page][theme]
    assert [place for place in seen if place["ratio"] < 4.5] == []
    grounds = [place["back"] for place in seen if place["selector"] == "article h1"]
    assert grounds
    assert all(ground < 0.05 if theme == "dark" else ground > 0.8 for ground in grounds)
    assert all(words.strip() for words in desktop[page]["badges"])


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


def test_the_ledger_is_filtered_on_a_phone(browser, address):
    tab = Visitor(browser, address, PHONE)
    tab.see("book/claims.html")
    cards = tab.page.locator(".claim-card:visible")
    rows = json.loads(tab.page.locator(".claim-filters").get_attribute("data-rows"))
    assert cards.count() == len(rows)
    wanted = {"verdict": "undecided", "scope": "tiny models"}
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


def test_the_ledger_is_whole_without_scripts(browser, address, built_book):
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(address + "book/claims.html")
    assert page.locator(".claim-card:visible").count() == page.locator(".claim-card").count() > 50
    context.close()


def test_search_finds_softmax(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    tab.see(PAGES[0])
    tab.page.locator("button.search-button-field:visible").click()
    tab.page.locator("input[type=search]:visible").fill("softmax")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/search.html?q=softmax*")
    tab.page.wait_for_selector("#search-results ul.search li a")
    found = tab.page.locator("#search-results ul.search li a").evaluate_all(
        "links => links.map(a => new URL(a.href).pathname)"
    )
    assert "/book/glossary.html" in found
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
        assert not [text for text in excerpts if re.search(r"\\\\|import |Show code", text)]
    assert tab.wrong == []
    tab.context.close()


def test_the_search_finds_names_of_the_package(browser, address):
    tab = Visitor(browser, address, DESKTOP)
    for name, page, said in (
        ("attend", "attention-dispatch", True),  # in the prose of chapters too: these come first
        ("KVCache", "multihead-cache", False),  # in code alone
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


@pytest.mark.parametrize("page", ["book/scaled-attention.html", "book/claims.html"])
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
        "<!doctype html><html data-theme=dark><body style='background:#222'><article>"
        "<p style='color:#333'>hardly there</p><p>$$ x^2 $$</p>"
        "<img src='gone.png'><div style='width:900px'>wide</div>"
        "<script src='https://example.org/far.js'></script>"
        "<script>console.error('oh')</script></article></body></html>"
    )
    handler = functools.partial(Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tab = Visitor(browser, f"http://127.0.0.1:{server.server_port}/", PHONE)
    try:
        tab.see("bad.html")
        assert tab.page.locator(SEARCH_BOX).count() == 0
        assert len(tab.page.evaluate(IMAGES)) == 2  # it is missing, and has no alternative text
        assert tab.page.evaluate(MATH)["raw"] == ["$$ x^2 $$"]
        assert tab.page.evaluate(WIDER)
        assert tab.page.evaluate(CONTRAST, ["article p"])[0]["ratio"] < 4.5
        assert tab.outside == ["https://example.org/far.js"]
        assert any("oh" in line for line in tab.wrong)
        assert any(line.startswith("404") for line in tab.wrong)
    finally:
        tab.context.close()
        server.shutdown()
        server.server_close()
