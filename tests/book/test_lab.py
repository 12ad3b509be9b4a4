"""The small laboratories: their tables, their places, and in the browser the package's numbers."""

import itertools
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.harness.published import CHIPS
from mha_book.attention.online_softmax import finalize, init, update
from mha_book.attention.reference import attention_weights, scaled_dot_product_attention
from mha_book.costs import attention_size, forward_matmul_flops, kv_cache_bytes
from mha_book.heads import split_heads
from mha_book.rope import rotary_angles, rotate
from mha_book.sharding.placement import PLACEMENTS, balance, make_placement
from mha_book.sharding.ring import ring_schedule
from tests.book.browsing import DESKTOP, PHONE, WIDER, Visitor, axe_findings
from tests.book.extensions import ROOT, lab, toc

PLACES = {
    "temperature": "scale",
    "wrong-reshape": "split-and-combine",
    "rope": "position",
    "online-softmax": "online-softmax",
    "decoding-step": "decoding",
    "ring": "many-devices",
}
STATIC = ROOT / "book" / "_static"
DATA = {name: one.data(ROOT) for name, one in lab.LABS.items()}
LLAMA = next(
    m
    for m in json.loads((ROOT / "book/data/models.json").read_text())["models"]
    if m["name"] == "Llama 3 8B"
)


def rows_of(name: str) -> tuple[tuple[str, ...], ...]:
    return tuple(lab.LABS[name].rows(DATA[name]))


def test_every_laboratory_stands_on_one_page_and_has_a_script():
    found = {}
    for page in toc.toc_pages(ROOT):
        path = ROOT / f"{page}.ipynb"
        if path.exists():
            cells = json.loads(path.read_text(encoding="utf8"))["cells"]
            text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
            for name in re.findall(r"^:::\{lab\} (\S+)$", text, re.M):
                assert name not in found
                found[name] = path.stem
    assert found == PLACES
    assert set(found) == set(lab.LABS)
    scripts = {path.stem for path in (STATIC / "lab").glob("*.js")}
    assert scripts == {"lab", *found}


# The tables that stand on paper, against arithmetic that is written out here.


def test_table_of_temperature():
    scores, right = np.array(DATA["temperature"]["scores"]), DATA["temperature"]["right"]
    assert abs(scores.mean()) < 1e-12
    assert np.sqrt((scores**2).mean()) == pytest.approx(1, abs=0.01)
    assert np.argsort(scores)[-2] == right
    rows = np.array(rows_of("temperature"), float)
    for size, largest, entropy, weight, slope in rows:
        weights = np.exp(size * scores) / np.exp(size * scores).sum()
        held = -(weights * np.log(weights)).sum() / np.log(8)
        expected = (weights.max(), held, weights[right], weights[right] * (1 - weights[right]))
        np.testing.assert_allclose((largest, entropy, weight, slope), expected, atol=2e-6)
    assert rows[:, 4].argmax() not in (0, len(rows) - 1), "the best size is in between"


def test_table_of_the_wrong_reshape():
    for t, n, h, in_place, held in rows_of("wrong-reshape"):
        t, n, h = int(t), int(n), int(h)
        count, positions = 0, set()
        for k in range(n):
            for i in range(t):
                piece = k * t + i  # in reading order; a position has n pieces
                count += h * (piece == i * n + k)
                if k == 0:
                    positions.add(piece // n)
        assert in_place == f"{count} of {t * n * h}"
        assert held == ", ".join(map(str, sorted(positions)))


def test_table_of_rope():
    query, key = (complex(*DATA["rope"][name]) for name in ("query", "key"))
    for pair, speed, *products in rows_of("rope"):
        exact = 100_000 ** (-2 * int(pair) / 64)
        assert float(speed) == pytest.approx(exact, rel=5e-3)
        for product, distance in zip(products, (2, 2, 42), strict=True):
            turned = query * complex(math.cos(distance * exact), math.sin(distance * exact))
            assert float(product) == pytest.approx((turned * key.conjugate()).real, abs=6e-4)


def test_table_of_online_softmax():
    data = DATA["online-softmax"]
    exponentials, values = np.exp(data["scores"]), np.array(data["values"])
    largest = 0.0
    for number, (block, m, fade, total, output, ratio) in enumerate(rows_of("online-softmax"), 1):
        seen = slice(0, 2 * number)
        now = exponentials[seen].max()
        expected = (
            math.log(now),
            largest / now,
            exponentials[seen].sum() / now,
            (exponentials * values)[seen].sum() / now,
            np.average(values[seen], weights=exponentials[seen]),
        )
        assert int(block) == number
        shown = [float(x) for x in (m, fade, total, output, ratio)]
        np.testing.assert_allclose(shown, expected, atol=6e-4)
        largest = now


def test_table_of_the_ring():
    """Queries are dealt out by hand; the one at position ``i`` has ``i + 1`` pairs."""
    for name, each, *shown in rows_of("ring"):
        each, total = int(each), 4 * int(each)
        stretches = [range(n * each // 2, (n + 1) * each // 2) for n in range(8)]
        queries = {
            "contiguous": [range(d * each, (d + 1) * each) for d in range(4)],
            "striped": [range(d, total, 4) for d in range(4)],
            "zigzag": [[*stretches[d], *stretches[7 - d]] for d in range(4)],
        }[name]
        pairs = [sum(i + 1 for i in own) for own in queries]
        waiting = 6 if name == "contiguous" else 0  # of the keys of later devices: 3 + 2 + 1
        ratio = 4 * max(pairs) / sum(pairs)
        assert shown == [", ".join(map(str, pairs)), str(waiting), f"{ratio:.3f}"]


def test_the_step_has_the_numbers_of_its_chapter():
    """What the cells of the chapter glued for the H100, whose bars its first figure draws."""
    cells = json.loads((ROOT / "book/decoding.ipynb").read_text(encoding="utf8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    glued = {
        output["metadata"]["scrapbook"]["name"].removeprefix("application/papermill.record/"): (
            output["data"]["application/papermill.record/text/plain"]
        ).strip("'")
        for output in outputs
        if "scrapbook" in output.get("metadata", {})
    }
    rows = {row[:3]: row[3:] for row in rows_of("decoding-step")}
    for batch in ("1", "32"):
        weights, caches, _ = rows["8", batch, "8192"]
        assert weights == glued["dec-first-weights"]
        assert caches == glued[f"dec-first-cache-{batch}"]
    weights, caches, doing = map(float, rows["8", "512", "128"])
    assert doing > weights + caches, "many short texts wait for operations"
    assert DATA["decoding-step"]["chips"] == {
        chip.name: {"memory": chip.memory, "bytes": chip.bytes_per_s, "flops": chip.flops_per_s}
        for chip in CHIPS.values()
    }


# In the browser.


SET = """([id, value]) => {
  const input = document.getElementById(id);
  if (input.type === 'checkbox') input.checked = value; else input.value = value;
  input.dispatchEvent(new Event('input', {bubbles: true}));
}"""
# A change is drawn in the next frame, so that it stands there in the frame after that one.
DRAWN = "async () => { for (let n = 0; n < 2; n++) await new Promise(requestAnimationFrame); }"
# Moves a slider in every frame for a while; what a screen reader was told from then on.
SAID = """async id => {
  const slider = document.getElementById(id);
  const voice = slider.closest('.lab').querySelector('[role=status]');
  const said = [];
  new MutationObserver(() => said.push(voice.textContent)).observe(voice, {childList: true});
  for (let n = 0; n < 20; n++) {
    slider.stepUp();
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    await new Promise(requestAnimationFrame);
  }
  while (!said.length) await new Promise(requestAnimationFrame);
  return said;
}"""
NUMBERS = """box => Object.fromEntries([...box.querySelectorAll('[data-number]')]
  .map(e => [e.dataset.number, Number(e.dataset.exact)]))"""


class Bench:
    """A page with a laboratory, in a tab."""

    def __init__(self, browser, address: str, name: str, viewport=DESKTOP, **more):
        self.name = name
        self.tab = Visitor(browser, address, viewport, **more)
        self.tab.see(f"book/{PLACES[name]}.html")
        self.page = self.tab.page
        self.box = self.page.locator(f"#lab-{name}.lab-ready")
        self.box.wait_for()

    def control(self, name: str):
        return self.page.locator(f"#lab-{self.name}-{name}")

    def put(self, **settings) -> dict[str, float]:
        """Set controls, and return all numbers."""
        for name, value in settings.items():
            self.page.evaluate(SET, [f"lab-{self.name}-{name}", value])
            self.drawn()  # some controls set the range of others
        return self.box.evaluate(NUMBERS)

    def drawn(self) -> None:
        self.page.evaluate(DRAWN)

    @property
    def says(self) -> str:
        self.drawn()
        return self.box.locator(".lab-says").inner_text()


@pytest.fixture
def bench(browser, address, request):
    one = Bench(browser, address, request.param)
    yield one
    assert (one.tab.wrong, one.tab.outside) == ([], [])
    one.tab.context.close()


def on_bench(name: str):
    return pytest.mark.parametrize("bench", [name], indirect=True)


in_browser = pytest.mark.needs_browser


@in_browser
@on_bench("temperature")
def test_temperature_has_the_weights_of_the_package(bench):
    keys = jnp.asarray(DATA["temperature"]["scores"])[:, None]
    for octave, answer in ((0, 6), (1.5, 2)):
        seen = bench.put(size=octave, answer=str(answer))
        size = 2.0**octave
        assert seen["size"] == pytest.approx(size)

        def weights(keys, size=size):
            return attention_weights(jnp.array([[size]]), keys, scale=1.0)[0]

        slopes = jax.grad(lambda keys, a=answer: weights(keys)[a])(keys)[:, 0] / size
        np.testing.assert_allclose(
            [seen[f"weight-{k}"] for k in range(8)], weights(keys), atol=2e-6
        )
        np.testing.assert_allclose([seen[f"slope-{k}"] for k in range(8)], slopes, atol=2e-6)
        shares = np.asarray(weights(keys), float)
        entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum() / math.log(8)
        assert seen["entropy"] == pytest.approx(entropy, abs=2e-5)
        shown = bench.box.locator("[data-number=entropy]").inner_text()
        assert float(shown) == pytest.approx(entropy, abs=6e-4)


@in_browser
@on_bench("wrong-reshape")
def test_the_reshape_moves_entries_as_arrays_do(bench):
    entries = """box => [...box.querySelectorAll('.lab-heads table')].map(table =>
      [...table.rows].map(row => [...row.cells].map(cell => Number(cell.textContent))))"""
    for t, n, h in ((4, 3, 2), (5, 2, 3)):
        z = np.array([[10 * i + f for f in range(n * h)] for i in range(t)])
        right, wrong = np.asarray(split_heads(jnp.asarray(z), n)), z.reshape(n, t, h)
        for way, expected in (("wrong", wrong), ("right", right)):
            bench.put(positions=t, heads=n, width=h, way=way)
            assert bench.box.evaluate(entries) == expected.tolist()
            in_place = bench.box.locator("[data-number=in-place]").inner_text()
            assert in_place == f"{(expected == right).sum()} of {z.size}"


@in_browser
@on_bench("rope")
def test_rope_turns_as_the_package_does(bench):
    data = DATA["rope"]
    angles = rotary_angles(jnp.arange(127), data["head_dim"], data["theta"])
    for i, j, on, pair in ((9, 3, 40, 3), (2, 50, 7, 20)):
        seen = bench.put(query=i, key=j, on=on, pair=pair)
        q, k = (
            rotate(jnp.asarray(data[name])[None], angles[at : at + 1, pair : pair + 1])
            for name, at in (("query", i + on), ("key", j + on))
        )
        assert seen["score"] == pytest.approx(float((q * k).sum()), abs=5e-5)
        assert seen["query-angle"] == pytest.approx(float(angles[i + on, pair]), rel=1e-6)
        assert seen["key-angle"] == pytest.approx(float(angles[j + on, pair]), rel=1e-6)
        assert seen["distance"] == i - j
        places = bench.box.locator("[data-number=places]").inner_text()
        assert places == f"{i + on} and {j + on}"
        assert seen["wavelength"] == pytest.approx(2 * math.pi / float(angles[1, pair]), rel=1e-6)


@in_browser
@on_bench("online-softmax")
def test_the_sums_are_those_of_the_package(bench):
    data = DATA["online-softmax"]
    cells = """box => [...box.querySelectorAll('tr[data-block]')].map(row =>
      [...row.querySelectorAll('td')].map(cell => cell.dataset.exact))"""
    for order, width, hidden in (("rising", 3, 0), ("falling", 1, 2)):
        by = {"given": range(8), "rising": np.argsort(data["scores"], kind="stable"),
              "falling": np.argsort(-np.array(data["scores"]), kind="stable")}[order]  # fmt: skip
        scores = jnp.asarray(data["scores"])[jnp.asarray(by)][None]
        values = jnp.asarray(data["values"], float)[jnp.asarray(by)][:, None]
        scores = scores.at[0, :hidden].set(-jnp.inf)
        bench.put(order=order, width=width, hidden=hidden, wrong=False)
        blocks = -(-8 // width)
        seen = bench.put(read=blocks)
        rows = [
            [float(x.replace("Infinity", "inf")) for x in row] for row in bench.box.evaluate(cells)
        ]
        known, expected = init((1, 1), jnp.float32), []
        for start in range(0, 8, width):
            block = slice(start, start + width)
            later = update(known, scores[:, block], values[block])
            shift = jnp.where(jnp.isneginf(later.maximum), jnp.float32(0), later.maximum)
            numbers = (
                later.maximum,
                jnp.exp(known.maximum - shift),
                *later[1:],
                finalize(later)[0],
            )
            expected.append([np.asarray(x).item() for x in numbers])
            known = later
        np.testing.assert_allclose(rows, expected, rtol=2e-6, atol=1e-6)
        visible = scores[0, hidden:]
        whole = scaled_dot_product_attention(
            jnp.ones((1, 1)), visible[:, None], values[hidden:], scale=1.0
        )
        assert seen["whole"] == pytest.approx(float(whole[0, 0]), abs=2e-6)
        assert bench.says.endswith("as at once.")
    bench.put(order="given", width=2, hidden=0, wrong=True)
    assert "wrong" in bench.says
    bench.put(order="falling")
    assert "right in spite of the mistake" in bench.says


@in_browser
@on_bench("decoding-step")
def test_the_step_costs_what_the_package_counts(bench):
    chips = {chip.name: chip for chip in CHIPS.values()}
    m = LLAMA
    cases = (("H100", 8, 5, 13, 16), ("B200", 1, 10, 17, 8))
    for name, k, log_batch, log_length, bits in cases:
        seen = bench.put(
            chip=name, heads=str(k), batch=log_batch, length=log_length, bits=str(bits)
        )
        batch, length, chip = 2**log_batch, 2**log_length, chips[name]
        size = attention_size(m["d_model"], m["num_heads"], k, m["head_dim"])
        hidden = 3 * m["d_model"] * m["hidden_dim"]
        weights = m["num_layers"] * (size.weight_count + hidden) + 128_256 * m["d_model"]
        caches = m["num_layers"] * kv_cache_bytes(
            size, position_count=batch * length, bytes_per_element=bits // 8
        )
        pairs = m["num_layers"] * forward_matmul_flops(size, pair_count=batch * length)
        reading = (2 * weights + caches) / chip.bytes_per_s
        doing = (2 * batch * weights + pairs) / chip.flops_per_s
        assert seen["total-weights"] == pytest.approx(reading, rel=1e-12)
        assert seen["total-layers"] == pytest.approx(doing, rel=1e-12)
        assert seen["caches"] == pytest.approx(caches / chip.bytes_per_s, rel=1e-12)
        assert seen["step"] == max(seen["total-weights"], seen["total-layers"])
        assert seen["rate"] == pytest.approx(batch / max(reading, doing), rel=1e-12)
        assert seen["memory"] == pytest.approx(2 * weights + caches, rel=1e-12)
        assert ("do not fit" in bench.says) == (2 * weights + caches > chip.memory)
        assert ("waits for memory" in bench.says) == (reading >= doing)
    bench.put(chip="H100", heads="8", batch=9, length=7, bits="16")
    assert "waits for operations" in bench.says


@in_browser
@on_bench("ring")
def test_the_ring_turns_as_the_package_does(bench):
    filled = """box => [...box.querySelectorAll('.lab-square .lab-now[d]')].map(path =>
      [...path.getAttribute('d').matchAll(/M(\\d+) (\\d+)h1/g)].map(m => [+m[2], +m[1]]))"""
    steps = ((3, 2), (8, 5))
    for (devices, step), name, causal in itertools.product(steps, PLACEMENTS, (True, False)):
        seen = bench.put(devices=devices, placement=name, step=step, causal=causal)
        ring = make_placement(name, 8 * devices, devices)
        upper = 0 if causal else None
        work = balance(ring, upper=upper)
        assert [seen[f"pairs-{d}"] for d in range(devices)] == work.pairs[step].tolist()
        assert [seen[f"all-{d}"] for d in range(devices)] == work.by_device.tolist()
        assert seen["ratio"] == pytest.approx(work.step_ratio, rel=1e-12)
        assert seen["used"] == pytest.approx(1 / work.step_ratio, rel=1e-12)
        assert seen["working"] == (work.pairs[step] > 0).sum()
        shift = ring_schedule(ring, upper=upper)[step].shift
        sources = [(d - shift) % devices for d in range(devices)]
        assert [seen[f"keys-{d}"] for d in range(devices)] == sources
        for d, cells in enumerate(bench.box.evaluate(filled)):
            queries, keys = ring.positions[d], ring.positions[sources[d]]
            pairs = {(int(i), int(j)) for i in queries for j in keys if not causal or j <= i}
            assert {tuple(cell) for cell in cells} == pairs
        assert bench.says.endswith("nobody waits.") == (work.step_ratio == 1)
    assert "Devices" not in bench.says
    bench.put(devices=4, placement="contiguous", step=2, causal=True)
    assert "Devices 0 and 1 wait" in bench.says
    bench.page.get_by_role("button", name="Next step").click()
    assert bench.says.startswith("Step 3 (of 0 to 3): device 0 has the keys of device 1. Devices")
    assert bench.page.get_by_role("button", name="Next step").is_disabled()


@in_browser
@on_bench("temperature")
def test_a_slider_has_a_label_keys_and_a_voice(bench):
    slider = bench.page.get_by_label("Size of scores")
    slider.focus()
    before = slider.evaluate("e => e.value")
    bench.page.keyboard.press("ArrowRight")
    bench.drawn()
    assert float(slider.evaluate("e => e.value")) > float(before)
    assert (
        slider.get_attribute("aria-valuetext") == bench.box.locator("output").inner_text() == "1.04"
    )
    bench.page.wait_for_function("document.querySelector('.lab [role=status]').textContent")
    assert bench.says.startswith("At size 1.04")
    said = bench.page.evaluate(SAID, "lab-temperature-size")
    assert said == [bench.says], "while the slider moves nothing is said"
    ids = bench.page.evaluate("""[...document.querySelectorAll('.lab :is(input, select)')]
      .filter(e => !e.labels.length).map(e => e.id)""")
    assert ids == []


@in_browser
@pytest.mark.parametrize("name", ["ring", "temperature"])
def test_it_serves_everyone_and_fits_a_phone(browser, address, name):
    one = Bench(browser, address, name, PHONE, scheme="dark")
    assert one.page.evaluate(WIDER) == []
    slim = one.page.evaluate(
        """[...document.querySelectorAll('.lab-live :is(input[type=range], select, button)')]
        .filter(e => e.getBoundingClientRect().height < 24).map(e => e.outerHTML)"""
    )
    assert slim == [], "too small for a finger"
    one.page.emulate_media(media="print")
    assert not one.box.locator(".lab-live").is_visible()
    assert one.box.locator(".lab-static table").is_visible()
    assert one.tab.wrong == []
    one.page.emulate_media(media="screen")
    found = [axe_findings(one.tab, theme, ".lab") for theme in ("dark", "light")]
    assert found == [[], []]  # last, since axe asks for style sheets that are not there
    one.tab.context.close()


@in_browser
def test_without_scripts_the_tables_stand_there(browser, address):
    context = browser.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    for name, at in PLACES.items():
        page.goto(f"{address}book/{at}.html")
        box = page.locator(f"#lab-{name}")
        assert box.locator(".lab-static table").is_visible()
        assert not box.locator(".lab-live").is_visible()
        text = box.locator(".lab-static").inner_text()
        assert all(cell in text for row in rows_of(name) for cell in row)
    context.close()
