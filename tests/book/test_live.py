"""MiniLM in the reader's browser: the package's tokens, weights and embeddings, and its page."""

import jax
import numpy as np
import pytest

from mha_book.models import minilm, smollm2
from mha_book.models.tokens import token_strings, tokenize
from tests.book.browsing import DESKTOP, PHONE, WIDER, Visitor, axe_findings, in_page
from tests.book.extensions import ROOT, explorer, toc

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_models]

LIMIT = 64
HOSTILE = [
    "", " \t ", "🙂", "I ❤️ attention 🤖🚀!", "👩‍👩‍👧‍👦 family", "שלום עולם, זה משפט",
    "مرحبا بالعالم", "我喜欢注意力机制", "東京は日本の首都です。", "안녕하세요 세계",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "<script>alert(1)</script><b>bold</b> &amp;",
    "[CLS] hello [SEP] [MASK] world [UNK]",
    "Ünïcödé àccénts ñ ß İstanbul ΑΒΓΣ ς", "zero\u200bwidth\u00adsoft\u202eevil\u202c \ufffd",
    "1,234.56 $%^&*()_+-={}[]|\\:;\"'<>?,./`~", "e\u0301 and é, “curly” — dash… 𝕬 ﬁ ½",
    "a" * 10_000, "word " * 2_000,
]  # fmt: skip
SENTENCES = HOSTILE + [s["text"] for s in toc.read(ROOT / explorer.DATA)["sentences"].values()]
STATE = "document.getElementById('explorer').explorer"
NOTE, SAY = "#explorer .hx-note", "#explorer .hx-say"
RUN = in_page("run")


@pytest.fixture
def visit(browser, address):
    """Open the explorer in a new tab, at an address or afresh."""
    tabs = []

    def open_tab(url="book/explorer.html#explorer:", viewport=DESKTOP):
        tab = Visitor(browser, address, viewport)
        tabs.append(tab)
        tab.page.goto(url if url.startswith("http") else address + url)
        tab.page.wait_for_function(f"document.querySelector('{SAY}')?.textContent")
        return tab

    yield open_tab
    assert [(tab.outside, tab.wrong) for tab in tabs] == [([], [])] * len(tabs)
    for tab in tabs:
        tab.context.close()


def reference():
    """The package's answer for a text, cut as the page cuts it; padded, to be compiled once."""
    model = minilm.load_minilm()

    @jax.jit
    def whole(ids, lengths):
        hidden, records = minilm.encode_with_intermediates(model.params, ids, lengths)
        return minilm.mean_pool(hidden[-1], lengths), [r.intermediates.weights[0] for r in records]

    def of_text(text):
        ids = np.array(model.tokenizer.encode(text[:1000]).ids, np.int32)
        ids = np.append(ids[: LIMIT - 1], ids[-1]) if len(ids) > LIMIT else ids
        count = len(ids)
        given = np.pad(ids, (0, LIMIT - count))[None], np.array([count], np.int32)
        embedding, weights = whole(*map(jax.numpy.asarray, given))
        kept = np.stack(weights)[:, :, :count, :count]
        return token_strings(model, jax.numpy.asarray(ids)), kept, np.asarray(embedding)[0]

    return of_text


def test_the_page_computes_what_the_package_does(visit):
    page, of_text = visit().page, reference()
    for text in SENTENCES:
        tokens, weights, embedding = of_text(text)
        found = page.evaluate(RUN, text)
        assert found["tokens"] == tokens, text[:40]
        assert text != "word " * 2_000 or found["read"] == len("word " * 62) - 1
        np.testing.assert_allclose(np.reshape(found["weights"], weights.shape), weights, atol=2e-2)
        assert np.dot(found["embedding"], embedding) > 0.99, text[:40]
    assert page.locator(f"{SAY} b, {SAY} script").count() == 0


def test_a_reader_tries_a_sentence_and_shows_it_to_somebody(visit):
    tab, text = visit(), "The <b>cat</b> drank the milk & slept."
    page, loads = tab.page, []
    page.on("request", lambda request: loads.append(request.url))
    page.fill("#explorer-own", text)
    assert not any("live-" in url for url in loads)
    page.keyboard.press("Enter")
    page.wait_for_function(f"document.querySelector('{NOTE}').textContent.includes('tokens')")
    assert page.evaluate("document.activeElement.id") == "explorer-own"
    assert "“" in page.locator(SAY).inner_text()
    page.select_option("[data-key=show]", "without")
    page.wait_for_function(f"!{STATE}.panes[0].maps.changes.some(Number.isNaN)", timeout=60_000)
    model = minilm.load_minilm()
    head, gates = page.evaluate(f"{STATE}.state.head"), np.ones((6, 12), np.float32)
    layer, number = map(int, head.split("."))
    gates[layer, number] = 0
    given = (model.params, *tokenize(model, [text]))
    whole, without = (minilm.embed(*given, gates=g)[0] for g in (None, jax.numpy.asarray(gates)))
    moved = page.evaluate(f"{STATE}.panes[0].maps.changes[{layer * 12 + number}]")
    assert moved == pytest.approx(1 - float(whole @ without), abs=2e-3)
    assert tab.wrong == []
    for theme in ("light", "dark"):
        assert axe_findings(tab, theme, "#explorer") == []
    tab.wrong.clear()  # axe asks for style sheets by wrong addresses

    other = visit(page.url, PHONE)  # nothing is loaded unasked
    assert "load the model" in other.page.locator(NOTE).inner_text()
    assert not other.page.locator(SAY).is_visible()  # no other sentence in its place
    assert not other.page.evaluate(WIDER)
    other.page.locator("#explorer .hx-go").click()
    other.page.wait_for_function(f"{STATE}.state.sentence === 'own'", timeout=60_000)
    assert other.page.evaluate(f"[{STATE}.state.head, {STATE}.state.text]") == [head, text]


def test_smollm2_in_the_page_expects_what_the_package_does(visit):
    """Its tokens of every text, and the probabilities of all next tokens, heads ablated or not."""
    model = smollm2.load_smollm2()
    chances = jax.jit(lambda *args: jax.nn.softmax(smollm2.forward(*args[:2], gates=args[2])[0]))
    page = visit("book/explorer.html").page
    says = "start => document.querySelector('.lab-says').textContent.startsWith(start)"
    for heads, said in (("L23H9", "“L23H9” isn’t"), ("L23H3", "Without L23H3, “Mary”")):
        page.get_by_label("Heads to ablate").fill(heads)
        page.get_by_role("button", name="Run SmolLM2").click()
        page.wait_for_function(says, arg=said)
    page.get_by_role("button", name="Try every head alone").click()
    page.wait_for_function(says, arg="2 of 270")  # L29H7, the second from the last, has its chip
    chip = page.get_by_role("button", name="L29H7 ").inner_text()
    page.get_by_label("Heads to ablate").fill("L29H7")  # which stops it
    page.wait_for_function(says, arg="Without L29H7, “Mary” goes from 80% to " + chip.split()[1])
    ask = "([text, off]) => document.querySelector('.lab-live').ask(text, off)"
    for number, text in enumerate(SENTENCES):
        ids = model.tokenizer.encode(text).ids
        off = [[number % 30, number % 9], [29, 8]][: number % 3]
        tokens = page.evaluate(ask, [text, None])["tokens"]
        assert tokens == [model.tokenizer.id_to_token(n) for n in ids], text[:40]
        if number % 4 == 0:
            ids = ids if len(ids) <= LIMIT else ids[:1] + ids[1 - LIMIT :]
            gates, count = np.ones((30, 9), np.float32), len(ids)
            for layer, head in off:
                gates[layer, head] = 0
            padded = np.pad(np.array(ids, np.int32), (0, LIMIT - count))
            wanted = chances(model.params, *map(jax.numpy.asarray, (padded[None], gates)))
            found = page.evaluate(ask, [text, off])
            np.testing.assert_allclose(found["chances"], wanted[count - 1], atol=2e-4)
