"""``:::{lab} NAME``: a small laboratory on a page, one idea with sliders.

The page gets a title, questions, what the script computes with (JSON) and a table that the package
computed, all from ``book/labs.yml``. The table is what stands on paper, and on a screen without
scripts; ``_static/lab/NAME.js``, which pages without a laboratory don't load, draws the rest.
"""

import base64
import json
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mha_book_live
import numpy as np
from mha_book_claims import from_template
from mha_book_equations import add_directive
from mha_book_toc import read

from mha_book.models.minilm import PACKAGE, encode_with_intermediates, load_minilm
from mha_book.models.smollm2 import FILE
from mha_book.models.tokens import token_strings, tokenize
from mha_book.storage import write_atomic

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.harness.published import CHIPS

TEXTS = "book/labs.yml"
FILES = {
    **dict.fromkeys(("decoding-step", "serving"), "benchmarks/harness/published.json"),
    "gqa": "book/data/sharing.json",
    "induction": "book/data/induction.json",
}


def lab_data(name: str, root: Path) -> dict[str, Any] | None:
    """Return what the script of a laboratory computes with; None where its model isn't here."""
    data = dict(read(root / TEXTS)[name].get("data", ()))
    if name in ("decoding-step", "serving"):
        data["chips"] = {
            chip.name: {"memory": chip.memory, "bytes": chip.bytes_per_s, "flops": chip.flops_per_s}
            for chip in CHIPS.values()
        }
    elif name == "token":
        layer = _token_layer(data["sentence"], data["layer"], data["shown"])
        return data | layer if layer else None
    elif name == "next-token":
        if (file := mha_book_live.smollm2_file()) is None:
            return None
        data |= {"bytes": file.stat().st_size, "part": mha_book_live.PART, "version": FILE[1][:8]}
    elif name == "gqa":
        known = {model["name"]: model for model in read(root / "book/data/models.json")["models"]}
        scratch = read(root / FILES[name])["scratch"]
        loss = {k: np.array(scratch[f"{k}, width"]["last"]) for k in (4, 2, 1)}
        change = {8 // k: loss[k] - scratch["multi-head"]["last"] for k in loss}
        data["models"] = {shown: known[shape] for shown, shape in data["shapes"].items()}
        data["tiny"] = {str(g): [x.min(), x.max()] for g, x in change.items()}
    elif name == "induction":
        data["sequences"] = read(root / FILES[name])
        del data["sequences"]["provenance"]
    return data


@cache
def _token_layer(sentence: str, layer: int, shown: int) -> dict[str, Any]:
    """Return a layer of MiniLM: the browser computes from queries, keys and values on."""
    if find_spec(PACKAGE) is None:
        return {}
    model = load_minilm()
    ids, lengths = tokenize(model, [sentence])
    inputs, inside = encode_with_intermediates(model.params, ids, lengths)[1][layer]
    own, few = model.params.layers[layer].attention, slice(shown)
    arrays = {
        "x": inputs[0, :, few], "q": inside.query, "k": inside.key, "v": inside.value,
        "w_o": own.w_o[..., few], "b_o": own.b_o[few],
    }  # fmt: skip
    units = {name: float(abs(x).max()) / (2**23 - 1) for name, x in arrays.items()}
    whole = {name: np.rint(np.float64(x) / units[name]).astype("<i4") for name, x in arrays.items()}
    low = {name: x.reshape(-1, 1).view("u1")[:, :3].T.tobytes() for name, x in whole.items()}
    packed = {name: [units[name], base64.b64encode(x).decode()] for name, x in low.items()}
    return {**packed, "tokens": token_strings(model, ids[0])}


def place_lab(self):
    """``:::{lab} NAME``, without content."""
    name, root = self.arguments[0], Path(self.env.srcdir)
    labs = read(root / TEXTS)
    if name not in labs:
        raise self.error(f"lab: expected one of {', '.join(sorted(labs))}; got {name!r}")
    for file in (TEXTS, "book/data/models.json", FILES.get(name, TEXTS)):
        self.env.note_dependency(str(root / file))
    data = lab_data(name, root)
    if data is None:
        return []
    here = self.env.metadata[self.env.docname].setdefault("labs", {})
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    here[name] = f"lab.give({name!r}, {text});" if len(text) > 20_000 else ""  # by a script
    text = "" if here[name] else text
    return from_template(self, "lab.md", labs[name], name=name, data=data, json=text).children


def _load(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Add scripts and style to a page with a laboratory."""
    if names := app.env.metadata.get(pagename, {}).get("labs"):
        app.add_css_file("lab.css")
        for name in filter(names.get, names):
            write_atomic(Path(app.outdir, "_static/lab", f"{name}-data.js"), names[name].encode())
        if "next-token" in names:
            mha_book_live.write_smollm2(Path(app.outdir, "_static/explorer"))
        for name in ("lab", *names):
            app.add_js_file(f"lab/{name}.js", priority=100, fetchpriority="high")


def setup(app):
    """Register the directive and the event."""
    add_directive(app, "lab", place_lab, required_arguments=1)
    app.connect("html-page-context", _load)
