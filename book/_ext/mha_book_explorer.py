"""The explorer of heads: ``{explorer}`` puts it into a page, open at one head in one sentence.

::

    ```{explorer}
    :head: smollm2 18.6
    :sentence: repeat
    :token: 15
    ```

Options, all of them optional: ``head`` (``smollm2`` or ``minilm``, and layer.head), ``sentence``,
``token`` (its number), ``measure`` (the color of the atlas), ``show`` (``weight``, ``value``,
``without``), ``beside`` (a second head), ``see`` (the sentence of the second head), ``form``
(``small`` for a short one) and ``play`` (any text: it goes from token to token by itself). What is
not named is where a sentence begins, as stored in ``book/data/explorer.json``.

A page without scripts has a picture of this head and the table of its map in the same place. With
scripts ``_static/explorer.js`` takes over when a reader comes near. What it needs of all heads goes
into ``_static/explorer/index.js``; what it needs of a sentence stands beside it, written by
``experiments/explorer_maps.py``.
"""

import base64
import html
import json
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from mha_book_equations import add_directive
from sphinx.errors import ExtensionError

DATA = Path("book") / "data" / "explorer.json"
NAMES = {"smollm2": "SmolLM2", "minilm": "MiniLM"}
UNIT = {"smollm2": 1e-3, "minilm": 1e-5}  # of the numbers in ``without``
NOTES = {
    "previous token": "The share of attention that goes to the token before, on speeches.",
    "next token": "The share of attention that goes to the token after, on speeches.",
    "near tokens": "The share of attention that goes to tokens at most two away, on speeches.",
    "itself": "The share of attention that a token gives itself, on speeches.",
    "same token": "The share of attention that goes to earlier copies of the token, on speeches.",
    "induction": "The share of attention that goes to what followed an earlier copy, on speeches.",
    "first token": "The share of attention that goes to the first token, on speeches.",
    "special tokens": "The share of attention that goes to [CLS] and [SEP], on speeches.",
    "entropy": "0: all attention on one token; 1: as even as can be; on speeches.",
    "induction on random repeats": "Of random tokens given twice: the share that goes to what "
    "followed the earlier copy.",
    "without it": "What closing this head alone does, on speeches; orange: better without.",
}
OPTIONS = ("head", "sentence", "token", "measure", "show", "beside", "see", "form", "play")


def load(root: Path) -> dict[str, Any]:
    """Read what the explorer knows of all heads and sentences."""
    return json.loads((root / DATA).read_text(encoding="utf8"))


def shape_of(document: dict[str, Any], model: str) -> tuple[int, int]:
    """Return how many layers a model has, and how many heads each of them."""
    trained = next(iter(document["measures"][model].values()))["trained"]
    return len(trained), len(trained[0])


def index_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return what the page needs before a sentence is chosen."""
    models = {}
    for model, measures in document["measures"].items():
        layers, heads = shape_of(document, model)
        noted = {name: {**values, "note": NOTES[name]} for name, values in measures.items()}
        models[model] = {"layers": layers, "heads": heads, "measures": noted}
    sentences = {}
    for key, sentence in document["sentences"].items():
        sentences[key] = {name: sentence[name] for name in ("title", "text", "see")}
        for model in models:
            kept = ("tokens", "look", "sha256")
            sentences[key][model] = {name: sentence[model][name] for name in kept}
    return {"models": models, "sentences": sentences}


def maps_of(root: Path, document: dict[str, Any], model: str, sentence: str) -> dict[str, Any]:
    """Return what the file of a sentence holds, as numbers.

    ``weights`` ``(L, N, T, T)``, ``values`` ``(L, N, T)``, and ``without``, ``(L, N, T - 1)`` for
    SmolLM2, ``(L, N)`` for MiniLM.
    """
    shape = shape_of(document, model)
    count = len(document["sentences"][sentence][model]["tokens"])
    file = root / "book" / "_static" / "explorer" / f"{model}-{sentence}.js"
    text = file.read_text(encoding="utf8")
    packed = json.loads(text[text.index("{") : text.rindex("}") + 1])
    raw = {key: base64.b64decode(value) for key, value in packed.items()}
    flat = np.frombuffer(raw["weights"], np.uint8).reshape(*shape, -1) / 255
    weights = np.zeros((*shape, count, count))
    if model == "smollm2":
        weights[:, :, *np.tril_indices(count)] = flat
    else:
        weights[:] = flat.reshape(weights.shape)
    tail = (count - 1,) if model == "smollm2" else ()
    return {
        "weights": weights,
        "values": np.frombuffer(raw["values"], np.uint8).reshape(*shape, count) / 255,
        "without": np.frombuffer(raw["without"], "<i2").reshape(*shape, *tail) * UNIT[model],
    }


def readable(token: str) -> str:
    """Return a token as the page writes it."""
    return token.replace("<|endoftext|>", "<first>").replace("\n", "⏎").strip() or "␣"


def most(row: np.ndarray, tokens: list[str]) -> list[tuple[str, float]]:
    """Return the tokens with most attention, at most three, with their weights."""
    order = np.argsort(-row, kind="stable")[:3]
    return [(readable(tokens[j]), row[j]) for n, j in enumerate(order) if not n or row[j] >= 0.05]


def picture(weights: np.ndarray, tokens: list[str], token: int, label: str) -> str:
    """Return the map of one head as SVG, its colors those of the theme."""
    words, side = [readable(t) for t in tokens], 16
    margin = 12 + 7 * max(map(len, words))
    size = margin + side * len(words) + 1
    parts = []
    for i, word in enumerate(words):
        place, text = margin + side * i, html.escape(word)
        parts.append(f'<text x="{margin - 5}" y="{place + 12}" text-anchor="end">{text}</text>')
        at = f"translate({place + 12} {margin - 5}) rotate(-90)"
        parts.append(f'<text transform="{at}">{text}</text>')
        for j, weight in enumerate(weights[i]):
            if weight > 0.004:
                parts.append(
                    f'<rect x="{margin + side * j}" y="{place}" width="{side - 1}" '
                    f'height="{side - 1}" style="--hx-share:{100 * weight:.0f}%"/>'
                )
    y = margin + side * token - 1
    mark = f'<rect class="hx-mark" x="1" y="{y}" width="{size - 3}" height="{side + 1}"/>'
    return (
        f'<svg role="img" viewBox="0 0 {size} {size}" width="{size}" height="{size}" '
        f'aria-label="{html.escape(label)}">{"".join(parts)}{mark}</svg>'
    )


def still(root: Path, document: dict[str, Any], options: dict[str, str]) -> str:
    """Return the picture and the table that a page without scripts has."""
    model, sentence = options["model"], options["sentence"]
    tokens = document["sentences"][sentence][model]["tokens"]
    layer, head = map(int, options["head"].split("."))
    token = int(options["token"])
    weights = maps_of(root, document, model, sentence)["weights"][layer, head]
    looks = ", ".join(f"“{word}” {x:.2f}" for word, x in most(weights[token], tokens))
    name = f"{NAMES[model]}, layer {layer}, head {head}"
    says = f"{name}: “{readable(tokens[token])}” looks at {looks}."
    rows = "".join(
        f"<tr><th scope='row'>{html.escape(readable(word))}</th><td>"
        + html.escape(", ".join(f"{at} {x:.2f}" for at, x in most(weights[i], tokens)))
        + "</td></tr>"
        for i, word in enumerate(tokens)
    )
    label = f"{name}, the whole map: each row a token that looks, each column one looked at"
    text = html.escape(document["sentences"][sentence]["text"])
    return (
        f'<div class="hx-still"><p class="hx-see"><b>{text}</b></p>'
        f'<div class="hx-map">{picture(weights, tokens, token, label)}</div>'
        f"<p>{html.escape(says)}</p><details><summary>The same as a table</summary>"
        f'<div class="wide-table"><table class="table"><thead><tr><th scope="col">token</th>'
        f'<th scope="col">looks at (weight)</th></tr></thead><tbody>{rows}</tbody></table></div>'
        "</details></div>"
    )


def complete(document: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    """Return all options of an explorer, checked; raise ValueError for what is not there."""
    options = {key: value for key, value in given.items() if key != "head"}
    model, _, head = given.get("head", "smollm2").partition(" ")
    sentence = options.setdefault("sentence", "fresh")
    for name, value, known in (
        ("model", model, document["measures"]),
        ("sentence", sentence, document["sentences"]),
        ("see", options.get("see", sentence), document["sentences"]),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}; got {value!r}")
    known = document["measures"][model]
    if (measure := options.get("measure")) is not None and measure not in known:
        raise ValueError(f"measure: expected one of {', '.join(known)}; got {measure!r}")
    look = document["sentences"][sentence][model]["look"]
    options |= {"model": model, "head": head or f"{look['layer']}.{look['head']}"}
    options.setdefault("token", str(look["query"]))
    layers, heads = shape_of(document, model)
    for name in ("head", "beside"):
        if name in options:
            layer, number = map(int, options[name].split("."))
            if layer >= layers or number >= heads:
                raise ValueError(f"{name}: {NAMES[model]} has no head {options[name]}")
    return options


def place_explorer(self):
    """``{explorer}``: the explorer, open at one head, with what a page without scripts has."""
    root = Path(self.env.srcdir)
    self.env.note_dependency(str(root / DATA))
    document = load(root)
    try:
        options = complete(document, self.options)
    except ValueError as error:
        raise self.error(f"explorer: {error}") from None
    number = self.env.temp_data["explorers"] = self.env.temp_data.get("explorers", 0) + 1
    self.env.metadata[self.env.docname]["explorer"] = "yes"
    name = "explorer" if number == 1 else f"explorer-{number}"
    data = "".join(f' data-{key}="{html.escape(value)}"' for key, value in sorted(options.items()))
    body = still(root, document, options)
    text = f'<div class="hx" id="{name}"{data}>{body}</div>'
    return [nodes.raw("", text, format="html")]


def tour(self):
    """``{explorer-tour}``: where each sentence begins in each model, as links into the explorer."""
    root = Path(self.env.srcdir)
    self.env.note_dependency(str(root / DATA))
    document = load(root)
    rows = []
    for key, sentence in document["sentences"].items():
        cells = [f'<th scope="row">{html.escape(sentence["title"])}</th>']
        for model in NAMES:
            look, tokens = sentence[model]["look"], sentence[model]["tokens"]
            layer, head, query = look["layer"], look["head"], look["query"]
            row = maps_of(root, document, model, key)["weights"][layer, head, query]
            (word, weight), *_ = most(row, tokens)
            state = f"model={model}&sentence={key}&head={layer}.{head}&token={query}"
            text = f"“{readable(tokens[query])}” looks at “{word}”"
            cells.append(
                f'<td><a href="#explorer" data-explorer="{html.escape(state)}">'
                f"{layer}.{head}: {html.escape(text)}</a> {weight:.2f}</td>"
            )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("Sentence", *NAMES.values()))
    table = (
        '<div class="wide-table"><table class="table hx-tour"><thead>'
        f"<tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
    return [nodes.raw("", table, format="html")]


def _page(app, page: str, template: str, context: dict, doctree) -> None:
    """Add script, style and a way past the menus to the pages that have an explorer alone."""
    context["has_explorer"] = "explorer" in app.env.metadata.get(page, {})
    if context["has_explorer"]:
        app.add_css_file("explorer.css")
        app.add_js_file("explorer.js", loading_method="defer")


def _finished(app, exception) -> None:
    """Write what the explorer needs before a sentence is chosen."""
    if exception is not None or app.builder.format != "html":
        return
    root = Path(app.srcdir)
    if not (root / DATA).exists():
        return
    index = index_of(load(root))
    for key in index["sentences"]:
        for model in index["models"]:
            if not (Path(app.outdir) / "_static" / "explorer" / f"{model}-{key}.js").is_file():
                raise ExtensionError(f"explorer: no maps of {model} for {key!r}")
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False)
    folder = Path(app.outdir) / "_static" / "explorer"
    (folder / "index.js").write_text(f'mhaExplorerTake("index",{text});\n', encoding="utf8")


def setup(app):
    """Register the directive."""
    given = dict.fromkeys(OPTIONS, directives.unchanged)
    add_directive(app, "explorer", place_explorer, option_spec=given)
    add_directive(app, "explorer-tour", tour)
    app.connect("html-page-context", _page)
    app.connect("build-finished", _finished)
