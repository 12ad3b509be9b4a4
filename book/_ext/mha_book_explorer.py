"""The explorer of heads: ``{explorer}`` puts it into a page, open at one head in one sentence.

::

    ```{explorer}
    :head: smollm2 18.6
    :sentence: repeat
    :token: 15
    ```

Options: ``sentence``, ``head`` (``smollm2`` or ``minilm``, and layer.head), ``token`` (its number),
``measure`` (the color of the atlas), ``form`` (``small`` for a short one), ``play`` (any text).
What is not named is where a sentence begins, as stored in
``book/data/explorer.json``.

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

import mha_book_live
import numpy as np
from docutils import nodes
from docutils.parsers.rst.directives import unchanged
from mha_book_equations import add_directive
from mha_book_html import template
from mha_book_toc import read
from sphinx.errors import ExtensionError

from mha_book.storage import file_digest

DATA = Path("book") / "data" / "explorer.json"
NAMES = {"smollm2": "SmolLM2", "minilm": "MiniLM"}
UNIT = {"smollm2": 1e-3, "minilm": 1e-5}  # of the numbers in ``without``
OPTIONS = dict.fromkeys(("head", "sentence", "token", "measure", "form", "play"), unchanged)


def shape_of(document: dict[str, Any], model: str) -> tuple[int, int]:
    """Return how many layers a model has, and how many heads each of them."""
    trained = next(iter(document["measures"][model].values()))["trained"]
    return len(trained), len(trained[0])


def index_of(root: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Return what the page needs before a sentence is chosen."""
    models = {}
    notes = read(root / "book" / "explorer.yml")
    for model, measures in document["measures"].items():
        layers, heads = shape_of(document, model)
        noted = {name: {**values, "note": notes[name]} for name, values in measures.items()}
        models[model] = {"layers": layers, "heads": heads, "measures": noted}
    kept = ("tokens", "look", "sha256")
    sentences = {
        key: {name: sentence[name] for name in ("title", "text", "see")}
        | {model: {name: sentence[model][name] for name in kept} for model in models}
        for key, sentence in document["sentences"].items()
    }
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


def still(root: Path, document: dict[str, Any], options: dict[str, str]) -> str:
    """Return the picture, its colors those of the theme, and the table without scripts."""
    model, sentence = options["model"], options["sentence"]
    tokens = document["sentences"][sentence][model]["tokens"]
    words, side = [readable(token) for token in tokens], 16
    layer, head = map(int, options["head"].split("."))
    weights = maps_of(root, document, model, sentence)["weights"][layer, head]
    margin = 12 + 7 * max(map(len, words))
    return template("explorer.html").render(
        name=f"{NAMES[model]}, layer {layer}, head {head}", words=words, weights=weights.tolist(),
        text=document["sentences"][sentence]["text"], token=int(options["token"]), side=side,
        looks=[most(row, tokens) for row in weights], margin=margin,
        size=margin + side * len(words) + 1,
    )  # fmt: skip


def complete(document: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    """Return all options of an explorer, checked; raise ValueError for what is not there."""
    model, _, head = given["head"].partition(" ")
    measures, sentences, sentence = document["measures"], document["sentences"], given["sentence"]
    known_measures = measures.get(model, {})
    for name, value, known in (
        ("model", model, measures),
        ("sentence", sentence, sentences),
        ("measure", given.get("measure", next(iter(known_measures), "")), known_measures),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}; got {value!r}")
    look = sentences[sentence][model]["look"]
    head = head or f"{look['layer']}.{look['head']}"
    shape = shape_of(document, model)
    if any(int(n) >= most for n, most in zip(head.split("."), shape, strict=True)):
        raise ValueError(f"head: {NAMES[model]} has no head {head}")
    return {"token": str(look["query"]), **given, "model": model, "head": head}


def place_explorer(self):
    """``{explorer}``: the explorer, open at one head, with what a page without scripts has."""
    root = Path(self.env.srcdir)
    self.env.note_dependency(str(root / DATA))
    document = read(root / DATA)
    try:
        options = complete(document, self.options)
    except ValueError as error:
        raise self.error(f"explorer: {error}") from None
    number = self.env.temp_data["explorers"] = self.env.temp_data.get("explorers", 0) + 1
    self.env.metadata[self.env.docname]["explorer"] = "yes"
    name = "explorer" if number == 1 else f"explorer-{number}"
    data = "".join(f' data-{key}="{html.escape(value)}"' for key, value in sorted(options.items()))
    body = still(root, document, options)
    return [nodes.raw("", f'<div class="hx" id="{name}"{data}>{body}</div>', format="html")]


def tour(self):
    """``{explorer-tour}``: where each sentence begins in each model, as links into the explorer."""
    root = Path(self.env.srcdir)
    self.env.note_dependency(str(root / DATA))
    document = read(root / DATA)
    rows = []
    for key, sentence in document["sentences"].items():
        starts = []
        for model in NAMES:
            look, tokens = sentence[model]["look"], sentence[model]["tokens"]
            layer, head, query = look["layer"], look["head"], look["query"]
            row = maps_of(root, document, model, key)["weights"][layer, head, query]
            top = most(row, tokens)[0]
            starts.append((model, f"{layer}.{head}", query, readable(tokens[query]), *top))
        rows.append((key, sentence["title"], starts))
    text = template("explorer-tour.html").render(models=NAMES, rows=rows)
    return [nodes.raw("", text, format="html")]


def _page(app, page: str, templatename: str, context: dict, doctree) -> None:
    """Add script, style and a way past the menus to the pages that have an explorer alone."""
    context["has_explorer"] = "explorer" in app.env.metadata.get(page, {})
    if context["has_explorer"]:
        app.add_css_file("explorer.css")
        app.add_js_file("explorer.js", priority=100)


def _finished(app, exception) -> None:
    """Write what the explorer needs before a sentence is chosen."""
    root = Path(app.srcdir)
    if exception is not None or app.builder.format != "html" or not (root / DATA).exists():
        return
    index, folder = index_of(root, read(root / DATA)), Path(app.outdir) / "_static" / "explorer"
    if live := mha_book_live.write(folder):
        script = folder.parent / "live" / "minilm.js"
        index["live"] = {**live, "code": file_digest(script)}
    for name in [f"{model}-{key}" for key in index["sentences"] for model in index["models"]]:
        if not (folder / f"{name}.js").is_file():
            raise ExtensionError(f"explorer: no maps in {name}.js")
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False)
    (folder / "index.js").write_text(f'mhaExplorerTake("index",{text});\n', encoding="utf8")


def setup(app):
    """Register the directive."""
    add_directive(app, "explorer", place_explorer, option_spec=OPTIONS)
    add_directive(app, "explorer-tour", tour)
    app.connect("html-page-context", _page)
    app.connect("build-finished", _finished)
