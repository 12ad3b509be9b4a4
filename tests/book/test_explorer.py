"""The explorer of heads: its directive, and the page in a browser, with mouse, keys and none."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.book.browsing import DESKTOP, PHONE, WIDER, Visitor
from tests.book.extensions import ROOT, explorer, public, status, toc

DOCUMENT = explorer.load(ROOT)
PAGE = "book/explorer.html"
IN_CHAPTERS = ("introduction", "specialization", "syntax-and-meaning", "heads-in-use", "index")
SAY, CELL, TOKEN = "#explorer .hx-say", "#explorer .hx-cell", "#explorer .hx-pane:visible .hx-token"
LINE = "document.querySelector('#explorer .hx-tokens')"


# The directive.


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"head": "bert 0.1"}, "model: expected one of smollm2, minilm; got 'bert'"),
        ({"head": "minilm 6.0"}, "head: MiniLM has no head 6.0"),
        ({"head": "smollm2 1.2", "beside": "1.9"}, "beside: SmolLM2 has no head 1.9"),
        ({"sentence": "rain"}, "sentence: expected one of thirsty"),
        ({"measure": "luck"}, "measure: expected one of previous token"),
    ],
)
def test_what_is_not_there_is_refused(given, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        explorer.complete(DOCUMENT, given)


def test_what_is_not_said_is_where_the_sentence_begins():
    found = explorer.complete(DOCUMENT, {"head": "minilm", "sentence": "keys"})
    assert (found["head"], found["token"]) == ("5.11", "7")


def test_a_page_without_scripts_has_the_picture_and_its_numbers():
    options = explorer.complete(DOCUMENT, {"head": "smollm2 13.8", "sentence": "keys"})
    text = explorer.still(ROOT, DOCUMENT, options)
    weights = explorer.maps_of(ROOT, DOCUMENT, "smollm2", "keys")["weights"][13, 8]
    assert f"“hang” looks at “keys” {weights[8, 2]:.2f}" in text
    assert text.count("<rect ") == 1 + (weights > 0.004).sum()
    assert text.count("<tr>") == 1 + len(weights)
    assert "SmolLM2, layer 13, head 8" in text


def test_the_explorer_stands_in_the_chapters():
    for page in (*IN_CHAPTERS, "explorer"):
        path = ROOT / "book" / f"{page}.ipynb"
        path = path if path.exists() else path.with_suffix(".md")
        assert "{explorer}" in path.read_text(encoding="utf8"), page


def test_the_counts_of_the_front_page_are_those_of_the_book():
    counts = status.front_counts(ROOT)
    defined = sum(
        line.lstrip().startswith(("def test_", "async def test_"))
        for path in (ROOT / "tests").rglob("test_*.py")
        for line in path.read_text(encoding="utf8").splitlines()
    )
    cells = [
        cell["cell_type"]
        for page in toc.toc_pages(ROOT)
        if (path := ROOT / f"{page}.ipynb").exists()
        for cell in json.loads(path.read_text(encoding="utf8"))["cells"]
    ]
    # Lines of tests that are text inside others are no tests.
    assert defined - 40 < counts["tests"] <= defined
    assert counts["cells"] == cells.count("code")
    assert 0 < counts["package"] < counts["executed"] < counts["displayed"]


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


pytest_browser = pytest.mark.needs_browser


@pytest_browser
def test_a_head_is_chosen_and_a_token_is_pointed_at(tab):
    page = opened(tab)
    page.select_option("[data-key=sentence]", "keys")
    page.locator(f"{CELL}[data-head='13.8']").click()
    row = weights("smollm2", "keys", 13, 8)
    page.locator(TOKEN).nth(8).click()
    said = page.locator(SAY).inner_text()
    assert said.startswith(f"Layer 13, head 8: “hang” looks at “keys” {row[8, 2]:.2f}")
    shown = page.locator(TOKEN).locator("small").all_inner_texts()
    assert [float(x) for x in shown[:9]] == pytest.approx(row[8, :9].tolist(), abs=0.006)
    assert shown[9:] == [""] * 4  # what comes later is not seen
    page.locator(TOKEN).nth(9).hover()
    assert "“beside” looks at “keys”" in page.locator(SAY).inner_text()
    page.locator("#explorer .hx-scale").hover()
    assert page.locator(SAY).inner_text() == said
    arcs = page.locator("#explorer .hx-pane:visible .hx-arcs path")
    assert arcs.count() == int((row[8] >= 0.02).sum())


@pytest_browser
def test_colours_are_the_measure_with_even_and_random_values_beside_it(tab):
    page = opened(tab)
    page.select_option("[data-key=measure]", "previous token")
    page.locator(f"{CELL}[data-head='16.0']").click()
    measure = DOCUMENT["measures"]["smollm2"]["previous token"]
    trained = np.array(measure["trained"])
    reading = page.locator("#explorer .hx-reading").inner_text()
    assert f"previous token {trained[16, 0]:.2f}; " in reading
    assert f"attends evenly {measure['even']:.2f}; " in reading
    assert f"in this place {measure['untrained'][16][0]:.2f}" in reading
    shares = page.locator(CELL).evaluate_all(
        "all => all.map(c => [c.dataset.head, parseInt(c.style.getPropertyValue('--hx-share'))])"
    )
    assert len(shares) == 270
    for name, share in shares:
        layer, head = map(int, name.split("."))
        assert share == pytest.approx(100 * trained[layer, head], abs=0.51)
    first = page.locator("#explorer .hx-chip").first.inner_text()
    assert first.startswith("{}.{} ".format(*np.unravel_index(trained.argmax(), trained.shape)))


@pytest_browser
def test_keys_go_from_head_to_head_and_from_token_to_token(tab):
    page = opened(tab)
    page.locator(f"{CELL}[tabindex='0']").focus()
    for key, head in (("ArrowRight", "19.6"), ("ArrowDown", "19.7"), ("ArrowLeft", "18.7"),
                      ("ArrowUp", "18.6"), ("Home", "0.6"), ("ArrowLeft", "0.6")):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.head") == head
        page.wait_for_function(
            f"document.querySelector('{SAY}').textContent"
            f".startsWith('Layer {head.split('.')[0]}, head {head.split('.')[1]}:')"
        )
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid"
    assert page.locator(f"{CELL}[tabindex='0']").count() == 1  # one stop of the Tab key
    place = page.evaluate("scrollY")
    page.keyboard.press("Space")
    page.wait_for_timeout(200)
    assert page.evaluate("scrollY") == place
    page.locator(f"{TOKEN}[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('“Z” looks')")
    assert page.evaluate("document.activeElement.innerText").startswith("Z")
    assert page.locator(f"{TOKEN}[tabindex='0']").count() == 1


@pytest_browser
@pytest.mark.parametrize("name", ["explorer", "index"])
def test_a_link_skips_the_menus(tab, name):
    tab.see(f"book/{name}.html")
    for key in ("Tab", "Tab", "Enter"):
        tab.page.keyboard.press(key)
    tab.page.locator("#explorer:not(:has(.hx-still))").wait_for()
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.matches('#explorer select')")


@pytest_browser
def test_two_heads_each_in_its_sentence(tab):
    page = opened(tab)
    page.select_option("[data-key=sentence]", "thirsty")
    page.locator(f"{CELL}[data-head='13.8']").click()
    page.check("[data-key=two]")
    page.locator("#explorer .hx-which input").nth(1).check()
    labels = page.locator("#explorer .hx-which").inner_text()
    assert labels.split(":")[0] == "A click in the atlas sets"
    for number, name in enumerate("AB"):
        assert f"head {name}" in labels
        title = page.locator("#explorer .hx-pane .hx-title").nth(number)
        assert title.inner_text().startswith(f"{name}: ")
    page.locator(f"{CELL}[data-head='13.8']").click()
    page.locator("#explorer .hx-pane").nth(1).locator("select").nth(2).select_option("fresh")
    page.locator(TOKEN).nth(9).click()
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('“fresh”')")
    said = page.locator(SAY).inner_text()
    assert "“thirsty” looks at “cat” 0.61" in said
    assert "“fresh” looks at “milk” 0.73" in said
    assert page.locator("#explorer .hx-pane:visible").count() == 2
    assert "beside=13.8&see=fresh" in page.url


@pytest_browser
def test_what_is_brought_and_what_closing_does(tab):
    page = opened(tab)
    maps = explorer.maps_of(ROOT, DOCUMENT, "smollm2", "repeat")
    page.select_option("[data-key=show]", "value")
    row = maps["weights"][18, 6, 15, :16] * maps["values"][18, 6, :16]
    shown = page.locator(TOKEN).locator("small").all_inner_texts()[:16]
    assert [float(x) for x in shown] == pytest.approx(row.tolist(), abs=0.006)
    page.select_option("[data-key=show]", "without")
    change = maps["without"][18, 6]
    shown = page.locator(TOKEN).locator("small").all_inner_texts()[1:]
    found = [float(x.replace("−", "-")) for x in shown]
    assert found == pytest.approx(change.tolist(), abs=0.006)
    page.select_option("[data-key=model]", "minilm")
    wanted = "the embedding of this sentence turns by"
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('{wanted}')")


@pytest_browser
def test_what_is_seen_is_in_the_address_and_comes_back(tab, browser, address):
    page = opened(tab)
    page.select_option("[data-key=model]", "minilm")
    page.select_option("[data-key=sentence]", "quote")
    page.locator(f"{CELL}[data-head='1.6']").click()
    page.locator(TOKEN).nth(14).click()
    said = page.locator(SAY).inner_text()
    assert said.startswith("Layer 1, head 6: “)” looks at “(” 0.79")
    other = Visitor(browser, address, DESKTOP)
    other.page.goto(page.url)
    other.page.wait_for_function(f"document.querySelector('{SAY}')?.textContent")
    assert other.page.locator(SAY).inner_text() == said
    other.context.close()
    page.locator(".hx-tour a", has_text="13.8: “fresh”").click()
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('“fresh”')")
    assert "“milk” 0.73" in page.locator(SAY).inner_text()
    page.evaluate("location.hash = 'explorer:model=nobody&head=99.1&sentence=none&token=-3'")
    page.wait_for_function("document.querySelector('[data-key=model]').value === 'smollm2'")


@pytest_browser
def test_a_sentence_opens_at_its_own_head_unless_one_was_chosen(tab):
    page = opened(tab)
    for sentence in ("thirsty", "keys"):
        look = DOCUMENT["sentences"][sentence]["smollm2"]["look"]
        row = weights("smollm2", sentence, look["layer"], look["head"])[look["query"]]
        page.select_option("[data-key=sentence]", sentence)
        wanted = f"Layer {look['layer']}, head {look['head']}: “"
        page.wait_for_function(
            f"document.querySelector('{SAY}').textContent.startsWith('{wanted}')"
        )
        page.wait_for_function(f"{LINE}.dataset.name === 'smollm2-{sentence}'")
        assert page.locator(TOKEN).count() == len(row)
        token = page.locator(TOKEN).nth(look["query"])
        assert token.get_attribute("aria-pressed") == "true"
        assert f" {row.max():.2f}" in page.locator(SAY).inner_text()
        assert page.locator(".hx-try").count() == 0
    page.locator(f"{CELL}[data-head='18.6']").click()
    page.select_option("[data-key=sentence]", "thirsty")
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('“thirsty”')")
    assert page.locator(SAY).inner_text().startswith("Layer 18, head 6: ")
    assert page.locator(".hx-try").inner_text() == "try 13.8"
    page.locator(".hx-try").click()
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.startsWith('Layer 13')")
    assert "“thirsty” looks at “cat” 0.61" in page.locator(SAY).inner_text()


@pytest_browser
def test_back_from_a_link_of_the_page_restores_what_was_seen(tab):
    page = opened(tab)
    opening = page.locator(SAY).inner_text()
    for name in ("13.8: “fresh”", "1.6: “)”"):
        before = page.locator(SAY).inner_text()
        page.locator(".hx-tour a", has_text=name).click()
        page.wait_for_function(
            f"document.querySelector('{SAY}').textContent !== {json.dumps(before)}"
        )
    for text in (before, opening):
        page.go_back()
        page.wait_for_function(
            f"document.querySelector('{SAY}').textContent === {json.dumps(text)}"
        )
    assert page.locator("[data-key=sentence]").input_value() == "repeat"
    page.go_forward()
    page.wait_for_function(f"document.querySelector('{SAY}').textContent.includes('“fresh”')")


@pytest_browser
def test_the_numbers_of_the_answer_add_up_to_one(tab):
    page = opened(tab)
    seen = 0
    for sentence in ("keys", "names", "list"):
        page.select_option("[data-key=sentence]", sentence)
        page.wait_for_function(f"{LINE}.dataset.name === 'smollm2-{sentence}'")
        for token in range(3, page.locator(TOKEN).count()):
            page.locator(TOKEN).nth(token).click()
            said = page.locator(SAY).inner_text()
            if " other " in said:
                numbers = re.findall(r"[01]\.\d\d", said)
                assert sum(map(float, numbers)) == pytest.approx(1, abs=1e-6), said
                seen += 1
    assert seen > 20


@pytest_browser
def test_the_text_says_what_the_picture_shows_and_the_table_has_all_of_it(tab):
    page = opened(tab)
    assert page.locator(SAY).get_attribute("role") == "status"
    page.locator("#explorer .hx-table summary").click()
    rows = page.locator("#explorer .hx-rows tbody tr")
    rows.first.wait_for()
    row = weights("smollm2", "repeat", 18, 6)
    assert rows.count() == len(row)
    assert f"ill {row[15, 6]:.2f}" in rows.nth(15).inner_text()
    grid = page.locator("#explorer .hx-grid")
    assert grid.get_attribute("aria-label") == "Heads of SmolLM2: layers across, heads down"
    name = grid.locator("[data-head='18.6']").get_attribute("aria-label")
    assert name == "layer 18, head 6: induction on random repeats 0.85"
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('#explorer :is(select, input)')]
          .filter(e => !(e.closest('label')?.textContent.trim()))"""
    )
    assert unnamed == []


@pytest_browser
def test_on_a_phone_in_the_dark(browser, address):
    visitor = Visitor(browser, address, PHONE, "dark")
    page = opened(visitor)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not page.evaluate(WIDER)
    page.check("[data-key=two]")
    assert not page.evaluate(WIDER)
    sizes = page.locator(f"{TOKEN}, #explorer .hx-chip").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(r => Math.min(r.width, r.height))"
    )
    assert min(sizes) >= 24
    grid = page.locator("#explorer .hx-grid")
    assert grid.get_attribute("aria-label") == "Heads of SmolLM2: heads across, layers down"
    assert [grid.locator("[role=row]").count(), page.locator(CELL).count()] == [30, 270]
    cells = page.locator(CELL).evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(r => Math.min(r.width, r.height))"
    )
    assert min(cells) >= 24
    page.locator(f"{CELL}[data-head='18.6']").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "19.6"
    page.locator(f"{CELL}[data-head='18.6']").click()
    page.locator(TOKEN).nth(4).click()
    assert "“met” looks at" in page.locator(SAY).inner_text()
    cell = page.locator(f"{CELL}[data-head='0.0']")
    ground = cell.evaluate("e => getComputedStyle(e).backgroundColor")  # color(srgb r g b)
    assert max(float(x) for x in re.findall(r"\d*\.\d+", ground)) < 0.4
    assert visitor.wrong == []
    visitor.context.close()


@pytest_browser
@pytest.mark.parametrize("page", IN_CHAPTERS)
def test_it_opens_in_the_chapters_at_the_right_head(tab, page):
    tab.see(f"book/{page}.html")
    root = tab.page.locator("#explorer")
    wanted = {name: root.get_attribute(f"data-{name}") for name in ("model", "head", "sentence")}
    source = tab.page.request.get(f"{tab.address}book/{page}.html").text()
    still = html.unescape(re.search(r"<p>(\w+, layer \d+, head \d+: .*?)</p>", source)[1])
    root.scroll_into_view_if_needed()
    tab.page.wait_for_function("document.querySelector('#explorer .hx-say')?.textContent")
    said = tab.page.locator(SAY).inner_text()
    layer, head = wanted["head"].split(".")
    start = f"Layer {layer}, head {head}: "
    assert said.startswith(start)
    looks = still.partition(": ")[2].rstrip(".")  # what the page says without scripts
    assert said.removeprefix(start).startswith(looks.split(",")[0])
    query = tab.page.locator("#explorer .hx-whole").get_attribute("href")
    assert f"model={wanted['model']}&head={wanted['head']}&sentence={wanted['sentence']}" in query
    if page == "syntax-and-meaning":
        tab.page.locator("#explorer .hx-whole").click()
        tab.page.wait_for_url("**/explorer.html?*")
        tab.page.wait_for_function("document.querySelector('#explorer .hx-say')?.textContent")
        assert tab.page.locator(SAY).inner_text() == said


@pytest_browser
def test_the_front_page_moves_unless_a_reader_wants_rest(browser, address):
    context = browser.new_context(viewport=DESKTOP, reduced_motion="no-preference")
    page = context.new_page()
    page.goto(address)
    page.wait_for_url("**/book/index.html")
    page.wait_for_function("document.querySelector('#explorer .hx-say')?.textContent")
    first = page.locator(SAY).inner_text()
    page.wait_for_function(f"document.querySelector('{SAY}').textContent !== {json.dumps(first)}")
    assert page.locator(SAY).get_attribute("aria-live") == "off"
    page.locator(".hx-play").click()
    assert page.locator(".hx-play").inner_text() == "Play"
    rest = page.locator(SAY).inner_text()
    page.wait_for_timeout(2500)
    assert page.locator(SAY).inner_text() == rest
    context.close()
    calm = Visitor(browser, address, DESKTOP)
    assert opened(calm, "book/index.html").locator(".hx-play").inner_text() == "Play"
    calm.context.close()


@pytest_browser
def test_the_front_page_goes_from_telling_word_to_telling_word_in_one_place(browser, address):
    context = browser.new_context(viewport=PHONE, reduced_motion="no-preference")
    page = context.new_page()
    page.clock.install()
    page.goto(f"{address}book/index.html")
    page.wait_for_function("document.querySelector('#explorer .hx-say')?.textContent")
    pressed = page.locator("#explorer [aria-pressed=true] .hx-word")
    below = "document.querySelector('.sd-card').getBoundingClientRect().top + scrollY"
    assert pressed.inner_text() == "it"
    assert "“it” looks at “milk”" in page.locator(SAY).inner_text()
    page.mouse.move(2, 2)
    seen, places = [], []
    for _ in range(44):
        page.clock.run_for(500)
        seen.append(pressed.inner_text())
        places.append(page.evaluate(below))
    assert set(seen) == {"it", "was", "the", "because"}  # these look most at another word
    assert 0.35 < seen.count("it") / len(seen) < 0.6
    assert seen[:8] == ["it"] * 8
    assert max(places) - min(places) < 1
    page.locator(SAY).hover()
    rest = pressed.inner_text()
    page.clock.run_for(12000)
    assert pressed.inner_text() == rest
    context.close()


def test_the_front_page_says_where_the_files_are(built_book):
    page = (Path(built_book) / "book" / "index.html").read_text(encoding="utf8")
    repository = public.read_public(ROOT).repository
    none = "This copy names no public address yet"
    assert (none in page) == (not repository)
    assert not repository or f'The files: <a class="reference external" href="{repository}"' in page


@pytest_browser
def test_the_doors_of_the_front_page_open(tab):
    for name, goal in (("Learn", "introduction.html"), ("Look up", "claims.html")):
        tab.see("book/index.html")
        foot = tab.page.locator(".sd-card", has_text=name).locator(".sd-card-footer")
        foot.click(force=True)  # the link of the card lies over it
        tab.page.wait_for_url(f"**/{goal}")
    tab.see("book/index.html")
    tab.page.locator(".sd-card a", has_text="glossary").click()
    tab.page.wait_for_url("**/glossary.html")


@pytest_browser
def test_it_opens_from_a_file_and_loads_only_what_is_wanted(browser, built_book):
    context = browser.new_context(viewport=DESKTOP)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((Path(built_book) / PAGE).as_uri())
    page.wait_for_function("document.querySelector('#explorer .hx-say')?.textContent")
    maps = [url for url in asked if re.search(r"explorer/(smollm2|minilm)-", url)]
    assert len(maps) == 1
    assert "smollm2-repeat.js" in maps[0]
    context.close()


@pytest_browser
def test_without_scripts_the_picture_and_the_table_stand(browser, address):
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(address + PAGE)
    assert page.locator("#explorer svg").is_visible()
    assert "“Qu” looks at “ill” 0.99" in page.locator("#explorer").inner_text()
    assert page.locator("#explorer tbody tr").count() == 20
    context.close()


@pytest_browser
def test_on_paper_the_map_and_its_sentence_stay(tab):
    page = opened(tab)
    page.emulate_media(media="print")
    assert page.locator("#explorer .hx-map svg").first.is_visible()
    assert page.locator(SAY).is_visible()
    assert not page.locator("#explorer .hx-controls").is_visible()
