"""The built book behind a local server, and a browser's tab that reaches nothing else."""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe

from tests.book.extensions import ROOT, toc

PAGES = [f"{page}.html" for page in toc.toc_pages(ROOT)]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
ARGUMENTS = [
    "--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-gpu",
    "--disable-component-update", "--no-first-run",
]  # fmt: skip

IN_PAGE = Path(__file__).with_name("in_page.js").read_text(encoding="utf8")


def in_page(name: str) -> str:
    """Return a function of ``in_page.js`` as a browser evaluates it."""
    return f"given => ({IN_PAGE}).{name}(given)"


MATH_READY, WIDER = map(in_page, ("mathReady", "wider"))

# How far what is seen moves while a page settles, summed as browsers sum it (layout shift).
SHIFTS = """
  window.shift = 0;
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
  }).observe({type: 'layout-shift', buffered: true});
"""
SHIFT_AT_MOST = 0.1


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that does not write to the terminal."""

    def log_message(self, format: str, *arguments) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


class Visitor:
    """A browser tab that reaches one address alone and notes what goes wrong."""

    def __init__(self, browser, address: str, viewport: dict, scheme: str = "light"):
        self.address, self.outside, self.wrong = address, [], []
        self.context = browser.new_context(
            viewport=viewport, color_scheme=scheme, reduced_motion="reduce"
        )
        self.context.route("**/*", self._gate)
        self.context.add_init_script(SHIFTS)
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
            self.page.wait_for_url("**/book/index.html")
        self.page.evaluate(MATH_READY)


# A theme changes colors and nothing else.
RULES = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}
SERIOUS = ("moderate", "serious", "critical")


def axe_findings(tab: Visitor, theme: str, within: str = "", contrast: bool = True) -> list[str]:
    """What axe finds on the page, or in an element of it; contrast is nine tenths of its time."""
    tab.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
    options = {"resultTypes": ["violations"], "iframes": False, **RULES[theme]}
    options["rules"] = {"color-contrast": {"enabled": contrast}}
    found = Axe().run(tab.page, within or None, options).response["violations"]
    return [
        f"{theme}: {rule['id']} ({rule['impact']}), {len(rule['nodes'])} times, "
        f"first {rule['nodes'][0]['html'][:120]}"
        for rule in found
        if rule["impact"] in SERIOUS
    ]
