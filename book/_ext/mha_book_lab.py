"""``:::{lab} NAME``: a small laboratory on a page, one idea with sliders.

The page gets a title, questions, what the script needs to compute (JSON, from the package and the
book's data) and a table that the package computed when the page was built. The table is what
stands on paper, and on a screen without scripts; ``_static/lab/NAME.js`` draws the rest. Scripts
and style are loaded by pages with a laboratory alone; much data comes after the page (lab.js).
"""

import base64
import json
import math
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from docutils import nodes
from mha_book_equations import add_directive, table
from mha_book_html import template

from mha_book.attention.online_softmax import finalize, init, update
from mha_book.attention.reference import attention_weights
from mha_book.costs import attention_size, forward_matmul_flops, kv_cache_bytes
from mha_book.heads import split_heads
from mha_book.models.minilm import PACKAGE, encode_with_intermediates, load_minilm
from mha_book.models.tokens import token_strings, tokenize
from mha_book.multihead.layer import multi_head_attention
from mha_book.rope import rotary_angles, rotate
from mha_book.sharding.placement import PLACEMENTS, balance, make_placement
from mha_book.storage import write_atomic

sys.path.append(str(Path(__file__).parents[2]))

from mha_book_toc import read

from benchmarks.harness.published import CHIPS

TEXTS = "book/labs.yml"


class Lab(NamedTuple):
    """How a laboratory gets its numbers; what it says stands in ``book/labs.yml``."""

    data: Callable[[Path], dict[str, Any]]  # root of the book -> what its script computes with
    rows: Callable[[dict[str, Any]], list[tuple[str, ...]]]  # the data -> the rows of its table
    files: tuple[str, ...] = ()  # of the book's data, whose change makes the page be read again


def _written(name: str) -> Callable[[Path], dict[str, Any]]:
    return lambda root: read(root / TEXTS)[name]["data"]


def _temperature_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    keys, right = jnp.asarray(data["scores"])[:, None], data["right"]
    rows = []
    for size in (0.25, 1, 4, 8, 16):
        weights = np.asarray(attention_weights(jnp.array([[float(size)]]), keys, scale=1.0))[0]
        entropy = float(-(weights * np.log(weights)).sum() / math.log(len(weights)))
        numbers = (weights.max(), entropy, weights[right], weights[right] * (1 - weights[right]))
        rows.append((f"{size:g}", *(f"{x:.6f}" for x in numbers)))
    return rows


def _reshape_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    first = (data["positions"], data["heads"], data["width"])
    for t, n, h in (first, (6, 3, 2), (4, 2, 2), (2, 2, 1), (1, 3, 2), (4, 1, 2)):
        z = np.arange(t * n * h).reshape(t, n * h)
        wrong = z.reshape(n, t, h)
        right = np.asarray(split_heads(jnp.asarray(z), n))
        held = ", ".join(str(i) for i in sorted({*(wrong[0] // (n * h)).ravel().tolist()}))
        rows.append((f"{t}", f"{n}", f"{h}", f"{(wrong == right).sum()} of {z.size}", held))
    return rows


def _rope_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    angles = rotary_angles(jnp.arange(64), data["head_dim"], data["theta"])
    query, key = (jnp.asarray(data[name])[None] for name in ("query", "key"))
    rows = []
    for pair in (0, 4, 8, 16, 31):
        products = []
        for i, j in ((5, 3), (45, 43), (45, 3)):
            places = ((query, i), (key, j))
            q, k = (rotate(x, angles[at : at + 1, pair : pair + 1]) for x, at in places)
            products.append(float((q * k).sum()))
        speed = float(angles[1, pair])
        rows.append((str(pair), f"{speed:.3g}", *(f"{x:.3f}" for x in products)))
    return rows


def _online_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    scores, values = (
        jnp.log(jnp.asarray(data["powers"], float))[None],
        jnp.asarray(data["values"], float)[:, None],
    )
    known, width, rows = init((1, 1), jnp.float32), data["block"], []
    for start in range(0, scores.shape[1], width):
        block = slice(start, start + width)
        later = update(known, scores[:, block], values[block])
        fade = math.exp(float(known.maximum[0, 0]) - float(later.maximum[0, 0]))
        known = later
        numbers = (later.maximum, fade, later.total, later.output, finalize(later)[0])
        shown = (f"{np.asarray(x).item():.3f}" for x in numbers)
        rows.append((str(start // width + 1), *shown))
    return rows


# A step of decoding: the least time, from bytes, operations and published rates.

PUBLISHED = "benchmarks/harness/published.json"
MODELS, RUNS = "book/data/models.json", "book/data/induction.json"
VOCABULARY = 128_256  # of Llama 3


def _chips() -> dict[str, dict[str, float]]:
    return {
        chip.name: {"memory": chip.memory, "bytes": chip.bytes_per_s, "flops": chip.flops_per_s}
        for chip in CHIPS.values()
    }


def _json(root: Path, name: str) -> dict[str, Any]:
    return {k: x for k, x in read(root / "book/data" / name).items() if k != "provenance"}


def _models(root: Path) -> dict[str, dict[str, Any]]:
    return {model["name"]: model for model in _json(root, "models.json")["models"]}


def _step_data(root: Path) -> dict[str, Any]:
    model = _models(root)["Llama 3 8B"]
    d, n, h, layers = (model[x] for x in ("d_model", "num_heads", "head_dim", "num_layers"))
    hidden = (3 if model["is_gated"] else 2) * d * model["hidden_dim"]
    shapes = {}
    for k in (32, 16, 8, 4, 2, 1):
        size = attention_size(d, n, k, h)
        shapes[str(k)] = {
            "weights": layers * (size.weight_count + hidden) + VOCABULARY * d,
            "position": layers * kv_cache_bytes(size, position_count=1, bytes_per_element=1),
        }
    one_pair = forward_matmul_flops(attention_size(d, n, 1, h), pair_count=1)
    return {
        "model": model["name"], "num_heads": n, "num_kv_heads": model["num_kv_heads"],
        "shapes": shapes, "pair_flops": layers * one_pair, "chips": _chips(), "chip": "H100",
        "batch": 32, "length": 8192,
    }  # fmt: skip


def _step_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    chip, rows = data["chips"][data["chip"]], []
    steps = ((8, 1, 8192), (8, 32, 8192), (32, 32, 8192), (1, 32, 8192), (8, 512, 128))
    for k, batch, length in steps:
        shape = data["shapes"][str(k)]
        weights = 2 * shape["weights"] / chip["bytes"]
        caches = 2 * batch * length * shape["position"] / chip["bytes"]
        doing = 2 * batch * shape["weights"], batch * length * data["pair_flops"]
        products, pairs = (flops / chip["flops"] for flops in doing)
        times = (weights, products, caches, max(weights, products) + max(caches, pairs))
        rows.append((str(k), str(batch), str(length), *(f"{1e3 * x:.1f}" for x in times)))
    return rows


# Serving: what fits on some devices, and the least time of a step.


def _serving_data(root: Path) -> dict[str, Any]:
    known, models = _models(root), {}
    for shown, name, words in (
        ("Llama 3 8B", "Llama 3 8B", VOCABULARY),
        ("Llama 3 70B (GQA)", "Llama 2 70B", VOCABULARY),  # the shape is the same
        ("Llama 65B (MHA)", "Llama 65B", 32_000),
    ):
        of = known[name]
        d, layers = of["d_model"], of["num_layers"]
        size = attention_size(d, of["num_heads"], of["num_kv_heads"], of["head_dim"])
        read = layers * (size.weight_count + 3 * d * of["hidden_dim"]) + words * d
        models[shown] = {
            "read": read, "weights": read + words * d, "heads": of["num_kv_heads"],
            "token": layers * kv_cache_bytes(size, position_count=1, bytes_per_element=1),
            "pair_flops": layers * forward_matmul_flops(size, pair_count=1),
        }  # fmt: skip
    return {
        "models": models, "chips": _chips(), "model": "Llama 3 70B (GQA)", "chip": "H100",
        "devices": 8, "context": 131_072, "batch": 8, "bits": 16,
    }  # fmt: skip


def _serving_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    chip, rows = data["chips"][data["chip"]], []
    for name, bits, devices in (
        ("Llama 3 70B (GQA)", 16, 8), ("Llama 3 70B (GQA)", 8, 8), ("Llama 3 70B (GQA)", 16, 16),
        ("Llama 65B (MHA)", 16, 8), ("Llama 65B (MHA)", 8, 8), ("Llama 3 8B", 16, 8),
    ):  # fmt: skip
        of = data["models"][name]
        cache, own = data["context"] * of["token"] * bits / 8, 2 * of["weights"] / devices
        part = cache / min(devices, of["heads"])
        batch = int((0.9 * chip["memory"] - own) // part)
        reading = (2 * of["read"] / devices + batch * part) / chip["bytes"]
        flops = batch * (2 * of["read"] + data["context"] * of["pair_flops"])
        step = max(reading, flops / devices / chip["flops"])
        numbers = (f"{cache / 1e9:.1f}", f"{batch}", f"{1e3 * step:.1f}")
        rows.append((name, f"{bits}", f"{devices}", *numbers))
    return rows


def _ring_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    devices, rows = data["devices"], []
    for name in PLACEMENTS:
        for each in (data["each"], 256):
            work = balance(make_placement(name, devices * each, devices), upper=0)
            waiting = int((work.pairs == 0).sum())
            pairs = ", ".join(map(str, work.by_device))
            rows.append((name, f"{each}", pairs, f"{waiting}", f"{work.step_ratio:.3f}"))
    return rows


# One token's way through a layer of MiniLM: the browser computes from queries, keys and values on.
@cache
def _token_layer(sentence: str, layer: int) -> tuple[Any, ...]:
    model = load_minilm()
    ids, lengths = tokenize(model, [sentence])
    _, records = encode_with_intermediates(model.params, ids, lengths)
    return token_strings(model, ids[0]), model.params.layers[layer].attention, records[layer]


def _token_data(root: Path) -> dict[str, Any] | None:
    if find_spec(PACKAGE) is None:
        return None
    data = _written("token")(root)
    tokens, own, (inputs, inside) = _token_layer(data["sentence"], data["layer"])
    few = slice(data["shown"])
    arrays = {
        "x": inputs[0, :, few], "q": inside.query, "k": inside.key, "v": inside.value,
        "w_o": own.w_o[..., few], "b_o": own.b_o[few],
    }  # fmt: skip
    packed = {name: np.asarray(x, "<f4").tobytes() for name, x in arrays.items()}
    packed = {name: base64.b64encode(x).decode() for name, x in packed.items()}
    return {**data, **packed, "tokens": tokens}


def _token_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    _, own, (inputs, inside) = _token_layer(data["sentence"], data["layer"])
    i, h, few = data["token"], data["head"], slice(data["shown"])
    q, k, v, a, o = (np.asarray(x[0]) for x in inside)
    x, y = inputs[0, i, few], multi_head_attention(own, inputs)[0, i, few]
    s, best = k[h] @ q[h, i], abs(o[h, i]).argmax()
    z = s / math.sqrt(k.shape[-1])
    average = [*a[h, i] * v[h, :, best], o[h, i, best]]
    numbers = (x, q[h, i, few], s, z, z, a[h, i], average, a[:, i].max(-1), y, x + y)
    return [
        (name, "; ".join(code), ", ".join(f"{round(float(y), 2) + 0:.2f}" for y in row))
        for (name, _, *code), row in zip(data["steps"], numbers, strict=True)
    ]


def _gqa_data(root: Path) -> dict[str, Any]:
    data, known = _written("gqa")(root), _models(root)
    scratch = _json(root, "sharing.json")["scratch"]
    loss = {k: np.array(scratch[f"{k}, width"]["last"]) for k in (4, 2, 1)}
    change = {8 // k: loss[k] - scratch["multi-head"]["last"] for k in loss}
    tiny = {str(g): [x.min(), x.max()] for g, x in change.items()}
    return {
        **data,
        "models": {name: known[data["shapes"][name]] for name in data["shapes"]},
        "tiny": tiny,
    }


def _gqa_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, of in data["models"].items():
        for k in (of["num_heads"], 16, 8, 4, 1):
            size = attention_size(of["d_model"], of["num_heads"], k, of["head_dim"])
            one = kv_cache_bytes(size, position_count=1, bytes_per_element=2)
            token, copies = of["num_layers"] * one / 1024, max(1, data["devices"] // k)
            numbers = (token, token * copies / data["devices"], copies)
            rows.append((name, f"{k}", *(f"{x:g}" for x in numbers)))
    return rows


def _sink_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for sink, best, n in data["rows"]:
        keys = jnp.array([-1e30 if sink == "none" else sink, best, *[0.0] * n])[:, None]
        weights = np.asarray(attention_weights(jnp.ones((1, 1)), keys, scale=1.0))[0]
        shown = (f"{x:.3f}" for x in (*weights[:2], weights[2:].sum()))
        rows.append((f"{sink}", f"{best}", f"{n}", *shown))
    return rows


def _points_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    q, keys, values = (jnp.array(data[name], float) for name in ("rows", "keys", "values"))
    weights = attention_weights(q, keys)
    numbers = np.round(np.concatenate([weights, weights @ values], 1), 3)
    return [
        (f"{x}, {y}", *map(str, row)) for (x, y), row in zip(data["rows"], numbers, strict=True)
    ]


def _induction_table(data: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, of in data["sequences"].items():
        t, half = of["tokens"], (len(of["tokens"]) + 1) // 2
        on = [(i, j + 1) for i in range(half, len(t)) for j in range(1, i) if t[j] == t[i]]
        count = len(dict(on))
        sums = (sum(run["weights"][i - half][j] for i, j in on) for run in list(of.values())[2:])
        rows.append((name, *(f"{x / count:.3f}" if count else "–" for x in sums)))
    return rows


LABS = {
    "temperature": Lab(_written("temperature"), _temperature_table),
    "wrong-reshape": Lab(_written("wrong-reshape"), _reshape_table),
    "rope": Lab(_written("rope"), _rope_table),
    "online-softmax": Lab(_written("online-softmax"), _online_table),
    "decoding-step": Lab(_step_data, _step_table, (MODELS, PUBLISHED)),
    "ring": Lab(_written("ring"), _ring_table),
    "serving": Lab(_serving_data, _serving_table, (MODELS, PUBLISHED)),
    "gqa": Lab(_gqa_data, _gqa_table, (MODELS, "book/data/sharing.json")),
    "sink": Lab(_written("sink"), _sink_table),
    "one-head-two": Lab(_written("one-head-two"), _points_table),
    "token": Lab(_token_data, _token_table),
    "induction": Lab(
        lambda root: {"sequences": _json(root, "induction.json")}, _induction_table, (RUNS,)
    ),
}


def place_lab(self):
    """``:::{lab} NAME``, without content."""
    name = self.arguments[0]
    if name not in LABS:
        raise self.error(f"lab: expected one of {', '.join(sorted(LABS))}; got {name!r}")
    lab, root = LABS[name], Path(self.env.srcdir)
    for file in (TEXTS, *lab.files):
        self.env.note_dependency(str(root / file))
    words = read(root / TEXTS)[name]
    data = lab.data(root)
    if data is None:  # the model isn't here
        return []
    says = nodes.paragraph("", words["says"].format(**data))
    rows = table(tuple(words["head"]), lab.rows(data))
    labs = self.env.metadata[self.env.docname].setdefault("labs", {})
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    labs[name] = f"lab.give({name!r}, {text});" if len(text) > 20_000 else ""  # by a script
    given = "" if labs[name] else text
    made = template("lab.html").render(name=name, title=words["title"], data=given)
    start, _, end = made.partition("SPLIT")
    return [
        nodes.raw("", start, format="html"),
        nodes.paragraph("", words["text"], classes=["lab-text"]),
        nodes.container("", rows, says, classes=["lab-static"]),
        nodes.raw("", end, format="html"),
    ]


def _load(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Add scripts and style to a page with a laboratory."""
    if names := app.env.metadata.get(pagename, {}).get("labs"):
        app.add_css_file("lab.css")
        for name in filter(names.get, names):
            write_atomic(Path(app.outdir, "_static/lab", f"{name}-data.js"), names[name].encode())
        for name in ("lab", *names):
            app.add_js_file(f"lab/{name}.js", priority=100, fetchpriority="high")


def setup(app):
    """Register the directive and the event."""
    add_directive(app, "lab", place_lab, required_arguments=1)
    app.connect("html-page-context", _load)
