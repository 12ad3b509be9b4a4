"""The small laboratories: their tables, their places, and in the browser the package's numbers."""

import json
import math
import re

import numpy as np
import pytest

from benchmarks.harness.published import CHIPS
from mha_book.models import minilm
from mha_book.models.tokens import tokenize
from mha_book.notation.page import page_text
from tests.book.browsing import DESKTOP, PHONE, WIDER, Visitor, axe_findings, in_page
from tests.book.extensions import ROOT, lab, ledger, toc

PLACES = {
    "temperature": "scale",
    "wrong-reshape": "split-and-combine",
    "rope": "position",
    "online-softmax": "online-softmax",
    "decoding-step": "decoding",
    "ring": "many-devices",
    "serving": "serving",
    "gqa": "grouped-query-attention",
    "sink": "sinks",
    "one-head-two": "scaled-attention",
    "induction": "head-matrices",
    "token": "multi-head-layer",  # and the introduction
    "next-token": "explorer",
}
STATIC = ROOT / "book" / "_static"


class Computed(dict):
    """What laboratories show, computed where a test asks for it."""

    def __missing__(self, name: str) -> object:
        self[name] = lab.lab_data(name, ROOT)
        return self[name]


DATA = Computed()


LABS = toc.read(ROOT / lab.TEXTS)


def rows_of(name: str) -> list[list[str]]:
    return LABS[name]["rows"]


def test_every_laboratory_stands_on_one_page_and_has_a_script():
    found = {}
    for page in toc.toc_pages(ROOT):
        if path := next(ROOT.glob(f"{page}.[im][pd]*"), None):
            for name in re.findall(r"^:::\{lab\} (\S+)$", page_text(path), re.M):
                assert name not in found or (name, found[name]) == ("token", "introduction")
                found[name] = path.stem
    assert found == PLACES
    assert set(found) == set(LABS)
    scripts = {path.stem for path in (STATIC / "lab").glob("*.js")}
    assert scripts == {"lab", *found}


def test_the_step_has_the_numbers_of_its_chapter():
    """What the cells of the chapter glued for the H100, whose bars its first figure draws."""
    glued = ledger.glued_values(ROOT / "book/decoding.ipynb")
    rows = {(*row[:3],): row[3:] for row in rows_of("decoding-step")}
    for batch in ("1", "32"):
        weights, _, caches, _ = rows["8", batch, "8192"]
        assert weights == glued["dec-first-weights"]
        assert caches == glued[f"dec-first-cache-{batch}"]
    weights, products, *_ = map(float, rows["8", "512", "128"])
    assert products > weights, "the products of many short texts wait for operations"
    assert DATA["decoding-step"]["chips"] == {
        chip.name: {"memory": chip.memory, "bytes": chip.bytes_per_s, "flops": chip.flops_per_s}
        for chip in CHIPS.values()
    }


def test_serving_has_the_numbers_of_its_chapter():
    """The cell that compares changes of the plan, for the 70B model."""
    cells = json.loads((ROOT / "book/serving.ipynb").read_text(encoding="utf8"))["cells"]
    shown = {
        name: [
            re.split(r"  +", line.strip())
            for cell in cells
            if cell["id"] == name
            for line in "".join(cell["outputs"][0]["data"]["text/plain"]).splitlines()
        ]
        for name in ("changes", "sixteen")
    }
    rows = {(*row[1:3],): row[4:] for row in rows_of("serving") if "70B" in row[0]}
    for key, (cell, plan) in {
        ("16", "8"): ("changes", "as it is"),
        ("8", "8"): ("changes", "cache in 8 bits"),
        ("16", "16"): ("sixteen", "16-way tensor parallel"),
    }.items():
        (found,) = (row for row in shown[cell] if row[0] == plan)
        assert rows[key] == [found[1], found[3]]


def test_slopes_of_the_temperature_are_difference_quotients():
    scores, right = np.array(DATA["temperature"]["scores"]), DATA["temperature"]["right"]
    nudge = 1e-4 * np.eye(len(scores))[right]
    for size, *_, slope in rows_of("temperature"):
        up, down = (np.exp(float(size) * scores + by) for by in (nudge, -nudge))
        rise = up[right] / up.sum() - down[right] / down.sum()
        assert rise / 2e-4 == pytest.approx(float(slope), abs=2e-6)


# In the browser.


SET, DRAWN, SAID, NUMBERS, TEXTS, BLOCKS = map(
    in_page, ("set", "drawn", "said", "numbers", "texts", "blocks")
)


class Bench:
    """A page with a laboratory, in a tab."""

    def __init__(self, browser, address: str, name: str, viewport=DESKTOP, **more):
        self.name = name
        self.tab = Visitor(browser, address, viewport, **more)
        self.tab.see(f"book/{PLACES[name]}.html")
        self.page = self.tab.page
        self.box = self.page.locator(f"#lab-{name}.lab-ready")
        self.box.wait_for()

    def put(self, **settings):
        """Set controls, and return all numbers."""
        for name, value in settings.items():
            self.page.evaluate(SET, [f"lab-{self.name}-{name}", value])
            self.page.evaluate(DRAWN)  # some controls set the range of others
        return self.box.evaluate(NUMBERS)

    @property
    def says(self) -> str:
        self.page.evaluate(DRAWN)
        return self.box.locator(".lab-says").inner_text()


def shown_temperature(one, size, *wanted):
    seen, right = one.put(size=math.log2(float(size))), DATA["temperature"]["right"]
    weights = [seen[f"weight-{k}"] for k in range(8)]
    shown = (max(weights), seen["entropy"], weights[right], seen[f"slope-{right}"])
    np.testing.assert_allclose(shown, [float(x) for x in wanted], atol=2e-5)


def shown_wrong_reshape(one, t, n, h, in_place, held):
    seen = one.put(positions=t, heads=n, width=h, way="wrong")
    assert f"{seen['in-place']:.0f} of {int(t) * int(n) * int(h)}" == in_place


def shown_rope(one, pair, speed, *products):
    for (i, j, on), product in zip(((5, 3, 0), (5, 3, 40), (45, 3, 0)), products, strict=True):
        seen = one.put(query=i, key=j, on=on, pair=pair)
        assert seen["score"] == pytest.approx(float(product), abs=6e-4)


def shown_online_softmax(one, block, *wanted):
    one.put(read=int(block))
    found = one.box.evaluate(BLOCKS)[int(block) - 1]
    np.testing.assert_allclose(found, [float(x) for x in wanted], atol=6e-4)


def shown_decoding_step(one, heads, batch, length, *wanted):
    powers = {"batch": math.log2(int(batch)), "length": math.log2(int(length))}
    seen = one.put(heads=heads, bits="16", **powers)
    shown = [seen[name] for name in ("weights", "layers", "caches", "step")]
    np.testing.assert_allclose([1e3 * x for x in shown], [float(x) for x in wanted], atol=0.06)
    assert ("products wait for memory" in one.says) == (seen["weights"] >= seen["layers"])


def shown_ring(one, name, each, pairs, waiting, ratio):
    if int(each) == DATA["ring"]["each"]:
        seen = one.put(placement=name)
        assert ", ".join(f"{seen[f'all-{d}']:.0f}" for d in range(4)) == pairs
        assert seen["ratio"] == pytest.approx(float(ratio), abs=6e-4)
        assert one.says.endswith("nobody waits.") == (ratio == "1.000")


def shown_serving(one, model, bits, devices, cache, most, step):
    seen = one.put(model=model, bits=bits, devices=math.log2(int(devices)), batch=int(most))
    assert seen["cache"] / 1e9 == pytest.approx(float(cache), abs=0.06)
    assert seen["most"] == int(most)
    assert 1e3 * seen["step"] == pytest.approx(float(step), abs=0.06)
    assert "This fits" in one.says
    assert ("stored 2 times" in one.says) == (
        int(devices) > DATA["serving"]["models"][model]["heads"]
    )
    one.put(batch=int(most) + 1)
    assert f"at most {most} requests" in one.says


FEW = range(6)  # of the features
STEPS = [
    *((kind, FEW) for kind in "xq"), *((kind, range(9)) for kind in ("s", "z", "m", "a", "part")),
    ("top", range(12)), *((kind, FEW) for kind in "yr"),
]  # fmt: skip


def shown_token(one, step, code, numbers):
    n = [name for name, *_ in DATA["token"]["steps"]].index(step)
    seen, (kind, which) = one.put(step=n + 1), STEPS[n]
    lit = one.box.locator("[aria-current=step] code").all_inner_texts()
    assert "; ".join(lit) == code
    shown = [seen[f"{kind}-{j}"] for j in which] + [seen["output"]] * (kind == "part")
    np.testing.assert_allclose(shown, [float(x) for x in numbers.split(", ")], atol=0.006)


def shown_gqa(one, model, heads, token, device, copies):
    seen = one.put(model=model, heads=math.log2(int(heads)), devices=3)
    kib = [seen[name] / 1024 for name in ("cache", "device")]
    assert kib == [float(token), float(device)]
    assert one.box.locator(".lab-kv").count() == max(8, int(heads))
    assert (f"stored {copies} times" in one.says) == (copies != "1")


def shown_sink(one, sink, best, others, *wanted):
    number = 0 if sink == "none" else sink
    seen = one.put(has=sink != "none", sink=number, best=best, others=math.log2(int(others)))
    shown = [seen[name] for name in ("sink", "best", "others")]
    np.testing.assert_allclose(shown, [float(x) for x in wanted], atol=6e-4)


def shown_one_head_two(one, query, *wanted):
    x, y = query.split(", ")
    seen = one.put(heads="2", x0=0, y0=0, x1=x, y1=y)
    *weights, first, second = map(float, wanted)
    np.testing.assert_allclose([seen[f"w1-{k}"] for k in range(4)], weights, atol=6e-4)
    seen = one.put(heads="1", x0=x, y0=y)
    assert seen["off-1"] == pytest.approx(math.hypot(first, second), abs=2e-3)


def shown_induction(one, name, *means):
    kinds = one.box.locator("select").nth(1).locator("option").all_inner_texts()
    for kind, mean in zip(kinds, means, strict=True):
        seen = one.put(sequence=name, without=kind, query=3)["mean"]
        assert math.isnan(seen) if mean == "–" else seen == pytest.approx(float(mean), abs=6e-4)


def shown_next_token(one, text, heads, word, whole, without):
    one.page.fill("#lab-next-token-text", text)
    one.page.fill("#lab-next-token-heads", heads)
    if one.box.get_by_role("button", name="loads").count():
        one.box.get_by_role("button", name="Run").click()
    row = one.box.locator("tr", has=one.page.locator("th", has_text=re.compile(f"“…?{word}”")))
    start = f"Without {heads}, “"
    one.page.wait_for_function(
        "start => document.querySelector('.lab-says').textContent.startsWith(start)", arg=start
    )
    exact = [float(e.get_attribute("data-exact")) for e in row.locator("[data-number]").all()]
    assert exact == pytest.approx([float(whole), float(without)], abs=6e-4)


SHOWN = {name: globals()[f"shown_{name.replace('-', '_')}"] for name in PLACES}
in_browser = pytest.mark.needs_browser


def needed(name: str):
    return pytest.param(name, marks=pytest.mark.needs_models) if "token" in name else name


@in_browser
@pytest.mark.parametrize("name", [needed(name) for name in PLACES])
def test_the_browser_computes_the_rows_of_the_table(browser, address, name):
    """The package computed the table, which is there alone without scripts."""
    one = Bench(browser, address, name)
    for row in rows_of(name):
        SHOWN[name](one, *row)
    assert (one.tab.wrong, one.tab.outside) == ([], [])
    assert axe_findings(one.tab, "dark", ".lab") == []
    one.tab.context.close()
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}book/{PLACES[name]}.html")
    box = page.locator(f"#lab-{name}")
    assert not box.locator(".lab-live").is_visible()
    text = box.locator(".lab-static").inner_text()
    assert all(cell in text for row in rows_of(name) for cell in row)
    context.close()


def by_the_lines_of_code(i: int, h: int, is_causal: bool) -> dict[str, float]:
    """Every number of the laboratory, from the lines that it shows, run by NumPy."""
    model, layer = minilm.load_minilm(), DATA["token"]["layer"]
    hidden = minilm.encode(model.params, *tokenize(model, [DATA["token"]["sentence"]]))
    own = model.params.layers[layer].attention._asdict()
    own = {name: np.asarray(x, float) for name, x in own.items()}
    for x in "qkv":
        own |= {f"w_{x}": own[f"w_{x}"].swapaxes(0, 1), f"b_{x}": own[f"b_{x}"][:, None]}
    everyone = np.ones((9, 9), bool)
    space = vars(np) | own | {
        "hidden": [np.asarray(x[0], float) for x in hidden], "w_o": own["w_o"].reshape(384, 384),
        "softmax": lambda s: np.exp(s) / np.exp(s).sum(-1, keepdims=True),
        "mask": np.tril(everyone) if is_causal else everyone,
    }  # fmt: skip
    after = []
    for _, _, *lines in DATA["token"]["steps"]:
        exec("\n".join(lines), space)
        after.append({name: space.get(name) for name in "xqksvaoy"})
    x, a, v, o = after[0]["x"], space["a"], space["v"], space["o"]
    parts = a[h, i, :, None] * v[h]
    chosen = abs(o[h, i]).argmax()
    writes = [*(o[g, i] @ space["w_o"][32 * g : 32 * g + 32] for g in range(12)), space["b_o"]]
    rows = {
        **{f"in-{j}": x[j, FEW] for j in range(9)}, "x": x[i, FEW],
        **{name: after[1][name][h, i, FEW] for name in "qkv"},
        **{name: after[n]["s"][h, i] for name, n in (("s", 2), ("z", 3), ("m", 4))},
        "a": a[h, i], "weight": a[h, i], "part": parts[:, chosen], "top": a[:, i].max(-1),
        **{f"write-{g}": y[FEW] for g, y in enumerate((*writes, space["y"][i]))},
        "y": space["y"][i, FEW], "r": space["x"][i, FEW],
    }  # fmt: skip
    numbers = {f"{name}-{n}": y for name, row in rows.items() for n, y in enumerate(row)}
    return numbers | {"weights": 1.0, "output": o[h, i, chosen]}


@in_browser
@pytest.mark.needs_models
def test_one_steps_through_a_layer_and_every_number_is_that_of_its_code(browser, address):
    one = Bench(browser, address, "token", PHONE, scheme="dark")
    for i, h, is_causal in ((5, 1, False), (2, 8, True), (0, 0, True), (8, 11, False)):
        one.put(token=str(i), head=str(h), causal=is_causal)
        shown = one.box.evaluate(TEXTS)
        exact, wanted = one.box.evaluate(NUMBERS), by_the_lines_of_code(i, h, is_causal)
        assert set(exact) - set(wanted) == {"step"}
        for name, y in wanted.items():
            text = float(shown[name].replace("−", "-").replace("∞", "inf"))
            assert (text, exact[name]) == pytest.approx((y, y), abs=0.00501), (i, h, name)
    assert one.page.evaluate(WIDER) == []
    one.box.get_by_role("button", name="Reset").click()
    one.box.get_by_role("button", name="Next").press("ArrowRight")
    one.box.get_by_role("button", name="Next").press("Enter")
    assert one.says.startswith("The query of “it”")
    one.page.wait_for_url("**#lab-token:step=3")
    found = [axe_findings(one.tab, theme, "#lab-token") for theme in ("dark", "light")]
    assert found == [[], []]
    one.tab.see("book/introduction.html#lab-token:step=8&head=3")
    one.box.wait_for()
    assert one.says.startswith("All 12 heads")
    assert one.box.evaluate(NUMBERS)["step"] == 8
    assert one.tab.wrong == []
    one.tab.context.close()


@in_browser
def test_the_address_keeps_what_was_moved_and_reset_leads_back(browser, address):
    one = Bench(browser, address, "decoding-step")
    first = one.box.evaluate(NUMBERS)
    moved = one.put(heads="32", batch=10)
    assert one.box.locator(".lab-struck").count() >= 3, "what does not fit has no time"
    one.page.wait_for_url("**#lab-decoding-step:heads=32&batch=10")
    one.page.reload()
    one.page.locator(f"#lab-{one.name}.lab-ready").wait_for()
    one.page.evaluate(DRAWN)
    assert one.box.evaluate(NUMBERS) == moved
    one.box.get_by_role("button", name="Reset").click()
    one.page.wait_for_url(re.compile(r"\.html$"))
    assert one.box.evaluate(NUMBERS) == first
    assert one.tab.wrong == []
    one.tab.context.close()


@in_browser
def test_what_is_dragged_moves_the_sliders(browser, address):
    one = Bench(browser, address, "one-head-two")
    one.box.locator(".lab-grip").first.drag_to(one.box.locator("svg text", has_text="cat").first)
    seen = one.put()
    assert seen["x0"] < -1
    assert seen["w0-2"] > 0.5
    one.tab.context.close()


@in_browser
def test_it_serves_everyone_and_fits_a_phone(browser, address):
    one = Bench(browser, address, "temperature", PHONE, scheme="dark")
    assert one.page.evaluate(WIDER) == []
    slider = one.page.get_by_label("Size of scores")
    slider.focus()
    one.page.keyboard.press("ArrowRight")
    assert one.says.startswith("At size 1.04")
    assert slider.get_attribute("aria-valuetext") == one.box.locator("output").inner_text()
    one.page.wait_for_function("document.querySelector('.lab [role=status]').textContent")
    said = one.page.evaluate(SAID, "lab-temperature-size")
    assert said == [one.says], "while the slider moves nothing is said"
    poor = one.page.evaluate("""[...document.querySelectorAll('.lab-live :is(input, select)')]
      .filter(e => !e.labels.length || e.type === 'range' && e.getBoundingClientRect().height < 24)
      .map(e => e.id)""")
    assert poor == [], "without a label, or too small for a finger"
    one.page.emulate_media(media="print")
    assert not one.box.locator(".lab-live").is_visible()
    assert one.box.locator(".lab-static table").is_visible()
    assert one.tab.wrong == []
    one.page.emulate_media(media="screen")
    found = [axe_findings(one.tab, theme, ".lab") for theme in ("dark", "light")]
    assert found == [[], []]  # last, since axe asks for style sheets that are not there
    one.tab.context.close()
