"""``:::{lab} NAME``: a small laboratory on a page, one idea with sliders.

The page gets a title, questions, what the script needs to compute (JSON, from the package and the
book's data) and a table that the package computed when the page was built. The table is what
stands on paper, and on a screen without scripts; ``_static/lab/NAME.js`` draws the rest. Scripts
and style are loaded by pages with a laboratory alone.
"""

import html
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from docutils import nodes
from mha_book_equations import table
from sphinx.util.docutils import SphinxDirective

from mha_book.attention.online_softmax import finalize, init, update
from mha_book.attention.reference import attention_weights
from mha_book.costs import attention_size, forward_matmul_flops, kv_cache_bytes
from mha_book.heads import split_heads
from mha_book.models.smollm2 import SmolLM2Config
from mha_book.rope import rotary_angles, rotate
from mha_book.sharding.placement import PLACEMENTS, balance, make_placement

__all__ = ["LABS", "Lab", "setup"]


class Table(NamedTuple):
    """What stands on paper: the head of the table, its rows, and what to see in them."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    says: str


class Lab(NamedTuple):
    """A laboratory.

    Args:
        title: what it is about.
        text: what is shown, and what to find out.
        data: root of the book -> what its script computes with.
        at_rest: the data -> its table.
        files: of the book's data, whose change makes the page be read again.
    """

    title: str
    text: str
    data: Callable[[Path], dict[str, Any]]
    at_rest: Callable[[dict[str, Any]], Table]
    files: tuple[str, ...] = ()


# Temperature: one row of scores of size 1, to be multiplied.


def _temperature_data(root: Path) -> dict[str, Any]:
    return {"scores": [0.5, -0.9, 1.7, -0.2, 0.2, -1.7, 0.9, -0.5], "right": 6}


def _temperature_table(data: dict[str, Any]) -> Table:
    keys, right = jnp.asarray(data["scores"])[:, None], data["right"]
    rows = []
    for size in (0.25, 1, 4, 8, 16):
        weights = np.asarray(attention_weights(jnp.array([[float(size)]]), keys, scale=1.0))[0]
        entropy = float(-(weights * np.log(weights)).sum() / math.log(len(weights)))
        numbers = (weights.max(), entropy, weights[right], weights[right] * (1 - weights[right]))
        rows.append((f"{size:g}", *(f"{x:.6f}" for x in numbers)))
    head = ("size of scores", "largest weight", "entropy", "weight of the answer", "its slope")
    return Table(
        head,
        rows,
        "Eight keys, of which the one with the second largest score holds the answer. Entropy is a "
        "share of the largest possible; the slope is how fast the answer's weight follows its own "
        "score. Of these sizes, 1 is the best.",
    )


# The wrong reshape: sizes alone.


def _reshape_data(root: Path) -> dict[str, Any]:
    return {"positions": 4, "heads": 3, "width": 2}


def _reshape_table(data: dict[str, Any]) -> Table:
    rows = []
    first = (data["positions"], data["heads"], data["width"])
    for t, n, h in (first, (6, 3, 2), (4, 2, 2), (2, 2, 1), (1, 3, 2), (4, 1, 2)):
        z = np.arange(t * n * h).reshape(t, n * h)
        wrong = z.reshape(n, t, h)
        right = np.asarray(split_heads(jnp.asarray(z), n))
        held = ", ".join(str(i) for i in sorted({*(wrong[0] // (n * h)).ravel().tolist()}))
        rows.append((f"{t}", f"{n}", f"{h}", f"{(wrong == right).sum()} of {z.size}", held))
    return Table(
        ("positions", "heads", "width", "entries in place", "positions in head 0"),
        rows,
        "A reshape of positions × features straight to heads × positions × width. The mistake "
        "changes nothing where there is one position or one head, and elsewhere head 0 does not "
        "hold all positions.",
    )


# Rotary positions: one pair of features of a query and a key.


def _rope_data(root: Path) -> dict[str, Any]:
    config = SmolLM2Config()
    return {
        "theta": config.rope_theta,
        "head_dim": config.head_dim,
        "query": [1.0, 0.25],
        "key": [0.85, 0.75],
    }


def _rope_table(data: dict[str, Any]) -> Table:
    angles = rotary_angles(jnp.arange(64), data["head_dim"], data["theta"])
    query, key = (jnp.asarray(data[name])[None] for name in ("query", "key"))
    rows = []
    for pair in (0, 4, 8, 16, 31):
        products = []
        for i, j in ((5, 3), (45, 43), (45, 3)):
            q, k = (
                rotate(x, angles[at : at + 1, pair : pair + 1]) for x, at in ((query, i), (key, j))
            )
            products.append(float((q * k).sum()))
        speed = float(angles[1, pair])
        rows.append((str(pair), f"{speed:.3g}", *(f"{x:.3f}" for x in products)))
    return Table(
        ("pair", "radians a position", "query 5, key 3", "query 45, key 43", "query 45, key 3"),
        rows,
        "The product of one pair of features of a query and a key, turned at the speeds of "
        "SmolLM2. At equal distances it is equal. A fast pair changes from one position to the "
        "next, a slow one hardly at all.",
    )


# Online softmax: one row in blocks.


def _online_data(root: Path) -> dict[str, Any]:
    exponentials = [1, 2, 4, 1, 8, 2, 16, 1]
    return {
        "scores": [math.log(x) for x in exponentials],
        "values": [4, 1, 2, 4, 3, 0, 1, 2],
        "block": 2,
    }


def _online_table(data: dict[str, Any]) -> Table:
    scores, values = jnp.asarray(data["scores"])[None], jnp.asarray(data["values"], float)[:, None]
    known, width, rows = init((1, 1), jnp.float32), data["block"], []
    for start in range(0, scores.shape[1], width):
        block = slice(start, start + width)
        later = update(known, scores[:, block], values[block])
        fade = math.exp(float(known.maximum[0, 0]) - float(later.maximum[0, 0]))
        known = later
        numbers = (later.maximum, fade, later.total, later.output, finalize(later)[0])
        shown = (f"{np.asarray(x).item():.3f}" for x in numbers)
        rows.append((str(start // width + 1), *shown))
    return Table(
        ("block", "maximum m", "fade", "sum ℓ", "sum o", "o / ℓ"),
        rows,
        "Eight keys in blocks of two. Where the maximum rises, the fade is below 1 and shrinks "
        "both sums; the last o / ℓ is the softmax average of all eight.",
    )


# A step of decoding: the least time, from bytes, operations and published rates.

VOCABULARY = 128_256  # of Llama 3


def _published(root: Path) -> dict[str, Any]:
    """Return what makers publish of their chips, from the file that the benchmarks use."""
    path = root / "benchmarks" / "harness" / "published.py"
    spec = importlib.util.spec_from_file_location("published_rates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CHIPS


def _step_data(root: Path) -> dict[str, Any]:
    text = (root / "book" / "data" / "models.json").read_text(encoding="utf8")
    model = next(m for m in json.loads(text)["models"] if m["name"] == "Llama 3 8B")
    d, n, h, layers = (model[x] for x in ("d_model", "num_heads", "head_dim", "num_layers"))
    hidden = (3 if model["is_gated"] else 2) * d * model["hidden_dim"]
    shapes = {}
    for k in (32, 16, 8, 4, 2, 1):
        size = attention_size(d, n, k, h)
        shapes[str(k)] = {
            "weights": layers * (size.weight_count + hidden) + VOCABULARY * d,
            "position": layers * kv_cache_bytes(size, position_count=1, bytes_per_element=1),
        }
    chips = {
        chip.name: {"memory": chip.memory, "bytes": chip.bytes_per_s, "flops": chip.flops_per_s}
        for chip in _published(root).values()
    }
    return {
        "model": model["name"],
        "num_heads": n,
        "num_kv_heads": model["num_kv_heads"],
        "shapes": shapes,
        "pair_flops": layers * forward_matmul_flops(attention_size(d, n, 1, h), pair_count=1),
        "chips": chips,
        "chip": "H100",
        "batch": 32,
        "length": 8192,
    }


def _step_table(data: dict[str, Any]) -> Table:
    chip, rows = data["chips"][data["chip"]], []
    for k, batch, length in (
        (8, 1, 8192),
        (8, 32, 8192),
        (32, 32, 8192),
        (1, 32, 8192),
        (8, 512, 128),
    ):
        shape = data["shapes"][str(k)]
        weights = 2 * shape["weights"] / chip["bytes"]
        caches = 2 * batch * length * shape["position"] / chip["bytes"]
        pairs = batch * length * data["pair_flops"]
        doing = (2 * batch * shape["weights"] + pairs) / chip["flops"]
        times = (f"{1e3 * x:.1f}" for x in (weights, caches, doing))
        rows.append((str(k), str(batch), str(length), *times))
    return Table(
        ("key heads", "texts", "positions", "weights, ms", "caches, ms", "operations, ms"),
        rows,
        f"{data['model']} on an {data['chip']}, two bytes a number: the least time of one step by "
        "published rates, for reading and for all operations. The longer of the two counts. Only "
        "many short texts make the step wait for operations.",
    )


# A ring of devices: whose keys are where, and who waits.


def _ring_data(root: Path) -> dict[str, Any]:
    return {"devices": 4, "each": 8, "placement": "contiguous", "step": 1}


def _ring_table(data: dict[str, Any]) -> Table:
    devices, rows = data["devices"], []
    for name in PLACEMENTS:
        for each in (data["each"], 256):
            work = balance(make_placement(name, devices * each, devices), upper=0)
            waiting = int((work.pairs == 0).sum())
            pairs = ", ".join(map(str, work.by_device))
            rows.append((name, f"{each}", pairs, f"{waiting}", f"{work.step_ratio:.3f}"))
    return Table(
        ("order", "positions of each", "pairs of each", "times one waits", "slowest over mean"),
        rows,
        "The pairs that each of four devices computes under a causal mask, in all four steps of a "
        "ring. In natural order the last device has most, and in six of sixteen cases a device "
        "waits for a whole step. Striped comes closer to even the more positions there are; zigzag "
        "is even.",
    )


LABS = {
    "temperature": Lab(
        "How sharp may a row be?",
        "A query reads eight keys, and one of them holds the answer. The last column says how "
        "fast the answer's weight follows each score: what a loss can teach. At which size of the "
        "scores can the answer be learned best? Is it the same for another answer?",
        _temperature_data,
        _temperature_table,
    ),
    "wrong-reshape": Lab(
        "Which entry goes where?",
        "The digits of an entry are its position and its feature, its color is its head. Choose an "
        "entry below, and see where it came from. Before you move a slider: for which sizes will "
        "the mistake change nothing?",
        _reshape_data,
        _reshape_table,
    ),
    "rope": Lab(
        "Turn one pair",
        "One pair of features of a query and of a key, at the speeds of SmolLM2. Move both on: "
        "what stays? Then find a pair that tells distance 1 from 2, and one that tells 1 from 40.",
        _rope_data,
        _rope_table,
    ),
    "online-softmax": Lab(
        "One pass over a row",
        "A bar is a key's exponential, relative to the largest score so far. Read block after "
        "block. In which order do the bars never shrink? And when does it go unnoticed if o is "
        "not faded?",
        _online_data,
        _online_table,
    ),
    "decoding-step": Lab(
        "What does the step wait for?",
        "The least time of one step of Llama 3 8B, by published rates. Which slider moves the "
        "time of one short text? Find a setting in which fewer key heads do not help, and one that "
        "waits for operations.",
        _step_data,
        _step_table,
        ("book/data/models.json", "benchmarks/harness/published.py"),
    ),
    "ring": Lab(
        "Who works when?",
        "A causal text on a ring, eight positions on each device. Take the steps one by one: whose "
        "keys are where, and who waits? In which order of the positions does nobody wait, and "
        "what changes without the mask?",
        _ring_data,
        _ring_table,
    ),
}


class lab_box(nodes.General, nodes.Element):
    """A laboratory; what is in it stands on paper, or where no script runs."""


class LabDirective(SphinxDirective):
    """``:::{lab} NAME``, without content."""

    required_arguments = 1

    def run(self):
        """Return the box with its table."""
        name = self.arguments[0]
        if name not in LABS:
            raise self.error(f"lab: expected one of {', '.join(sorted(LABS))}; got {name!r}")
        lab, root = LABS[name], Path(self.env.srcdir)
        for file in lab.files:
            self.env.note_dependency(str(root / file))
        data = lab.data(root)
        at_rest = lab.at_rest(data)
        box = lab_box("", name=name, title=lab.title, data=data, ids=[f"lab-{name}"])
        box += nodes.paragraph("", lab.text, classes=["lab-text"])
        static = nodes.container("", classes=["lab-static"])
        static += [table(at_rest.head, at_rest.rows), nodes.paragraph("", at_rest.says)]
        box += static
        return [box]


def _visit(self, node):
    name, title = node["name"], html.escape(node["title"])
    self.body.append(
        f'<section class="lab" id="lab-{name}" data-lab="{name}" '
        f'aria-labelledby="lab-{name}-title">\n'
        f'<p class="lab-title" id="lab-{name}-title"><span class="lab-kind">Try it</span> '
        f"{title}</p>\n"
    )


def _depart(self, node):
    text = json.dumps(node["data"], ensure_ascii=False, sort_keys=True).replace("</", "<\\/")
    self.body.append(
        '<div class="lab-live"></div>\n'
        f'<script type="application/json" class="lab-data">{text}</script>\n</section>\n'
    )


def _load(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Add scripts and style to a page with a laboratory."""
    names = [box["name"] for box in doctree.findall(lab_box)] if doctree is not None else []
    if not names:
        return
    app.add_css_file("lab.css")
    for name in ("lab", *dict.fromkeys(names)):
        app.add_js_file(f"lab/{name}.js", loading_method="defer")


def setup(app):
    """Register the directive, its node and the event."""
    app.add_node(lab_box, html=(_visit, _depart))
    app.add_directive("lab", LabDirective)
    app.connect("html-page-context", _load)
