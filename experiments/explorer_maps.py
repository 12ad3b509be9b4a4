"""What the explorer of heads shows: maps of all heads on short sentences, and their measures.

For each sentence and model one file ``book/_static/explorer/MODEL-SENTENCE.js``, which a page loads
when a reader asks for it: a script and no data, since a page opened from a file may not fetch. It
calls ``mhaExplorerTake`` with three arrays, each in base64:

- ``weights``, uint8, 255 for 1, right to two decimals: ``(L, N, T, T)``, of SmolLM2 the entries
  ``j <= i`` alone;
- ``values``, uint8: how long what each key hands over is, as a share of the longest of the head;
- ``without``, int16, little-endian: what closing the head does. SmolLM2: the rise of the loss of
  each token but the first, in thousandths of a nat, ``(L, N, T - 1)``. MiniLM: 1 less the cosine of
  the sentence's embedding with that of the whole model, in units of 1e-5, ``(L, N)``.

``book/data/explorer.json`` has the tokens, the digests of these files, and the measures of all
heads: those of ``heads-*.csv`` and ``pruning.json``, and beside them those of a model of the same
shape with random weights on the same texts.
"""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.heads import minilm_sums, sentences, smollm2_sums, text_by_text, windows
from experiments.shared import DATA, ROOT, SOURCES, Run, experiment, first_layers
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import token_strings, tokenize
from mha_book.multihead.parameters import init_multi_head
from mha_book.specialization.measures import add_texts
from mha_book.storage import file_digest, read_result, read_table, write_atomic

SEEDS = "untrained models: 0"
INPUTS = (*SOURCES, "heads.json", "pruning.json")
MEASURES = {  # name on the page: the measure in the tables of heads
    "previous token": "previous",
    "next token": "next",
    "near tokens": "local",
    "itself": "self",
    "same token": "same token",
    "induction": "induction",
    "first token": "first",
    "special tokens": "special",
    "entropy": "entropy",
}
ALONE = {"next token": "minilm", "special tokens": "minilm"}  # what one model alone has


# Title, text, what a reader may look for, and for each model where to begin: layer, head, the token
# that looks and at which one.
_TEXT = Path(__file__).with_name("explorer_sentences.json").read_text(encoding="utf8")
SENTENCES: dict[str, Any] = json.loads(_TEXT)
LOOK = ("layer", "head", "query", "key")


class Maps(NamedTuple):
    """What the heads of a model do with one sentence of ``T`` tokens."""

    tokens: list[str]
    weights: np.ndarray  # (L, N, T, T)
    values: np.ndarray  # (L, N, T), lengths behind W_O, as shares of the longest of the head
    losses: np.ndarray  # (T - 1,), of each token but the first, in nats; none for MiniLM
    # (L, N, T - 1), the rise of these with the head closed; of MiniLM (L, N), 1 less the cosine of
    # the embedding with that of the whole model.
    without: np.ndarray


def maps_of(name, model, width, only=None) -> Callable[[str], Maps]:
    layers = model.params.layers
    shape = (len(layers), layers[0].attention.w_q.shape[1])
    closed = [(n, h) for n in range(shape[0]) for h in range(shape[1])] if only is None else only
    projections = jnp.stack([layer.attention.w_o for layer in layers])  # (L, N, H, D)

    def inside(records: Any) -> tuple[jax.Array, jax.Array]:
        weights = jnp.stack([r.intermediates.weights[0] for r in records])
        values = jnp.stack([r.intermediates.value[0] for r in records])  # (L, K, T, H)
        values = jnp.repeat(values, shape[1] // values.shape[1], axis=1)
        handed = jnp.einsum("lnth,lnhd->lntd", values, projections)
        return weights, jnp.linalg.norm(handed, axis=-1)

    @jax.jit
    def whole(*given: Any) -> Any:
        if name == "smollm2":
            return inside(smollm2.forward_with_intermediates(*given, config=model.config)[1])
        return inside(minilm.encode_with_intermediates(*given)[1])

    @jax.jit
    def effect(params: Any, ids: jax.Array, length: jax.Array, gates: jax.Array) -> jax.Array:
        def one(g: jax.Array) -> jax.Array:
            if name == "smollm2":
                return smollm2.token_losses(params, ids, length, config=model.config, gates=g)
            return minilm.mean_pool(minilm.encode(params, ids, length, gates=g)[-1], length)

        return jax.vmap(one)(gates)[:, 0]

    def of_text(text: str) -> Maps:
        ids, lengths = tokenize(model, [text])
        count = int(lengths[0])
        given = (model.params, jnp.pad(ids, ((0, 0), (0, width - count))), lengths)
        weights, lengths_of_values = (np.asarray(x)[:, :, :count] for x in whole(*given))
        batch = shape[1]
        rows = []
        for start in range(0, len(closed), batch):
            gates = np.ones((batch, *shape), np.float32)
            for number, place in enumerate(closed[start : start + batch]):
                gates[number][place] = 0
            rows.append(np.asarray(effect(*given, jnp.asarray(gates))))
        found = np.concatenate(rows)[: len(closed)]
        base = np.asarray(effect(*given, jnp.ones((batch, *shape))))[0]
        change = found - base if name == "smollm2" else 1 - found @ base
        losses = base[: count - 1] if name == "smollm2" else np.zeros(0)
        tail = (count - 1,) if name == "smollm2" else ()
        without = np.full((*shape, *tail), np.nan)
        for place, row in zip(closed, change, strict=True):
            without[place] = row[: count - 1] if tail else row
        longest = lengths_of_values.max(-1, keepdims=True)
        tokens = token_strings(model, ids[0, :count])
        return Maps(tokens, weights[..., :count], lengths_of_values / longest, losses, without)

    return of_text


def to_bytes(shares: np.ndarray) -> np.ndarray:
    """Return shares of 1 in bytes, 255 for 1, each of which has the share's own two decimals.

    Where the nearest byte shows another hundredth, the one next to it shows the right one: each
    hundredth has two or three bytes.
    """
    shares = np.asarray(shares, np.float64)
    nearest = np.round(255 * shares)
    off = np.round(nearest / 255, 2) - np.round(shares, 2)
    return np.where(abs(off) > 5e-3, nearest - np.sign(off), nearest).astype(np.uint8)


UNIT = {"smollm2": 1e-3, "minilm": 1e-5}
"""Of the numbers in ``without``."""


def pack(name: str, maps: Maps) -> dict[str, str]:
    weights = maps.weights
    if name == "smollm2":
        weights = weights[:, :, *np.tril_indices(len(maps.tokens))]
    units = np.round(maps.without / UNIT[name])
    assert abs(units).max() < 2**15, "more than two bytes hold"
    arrays = {
        "weights": to_bytes(weights),
        "values": to_bytes(maps.values),
        "without": units.astype("<i2"),
    }
    return {key: base64.b64encode(x.tobytes()).decode() for key, x in arrays.items()}


def untrained_smollm2(model: Any, seed: int) -> Any:
    """Return weights of the shape of SmolLM2, normal, of variance 1 / width."""
    keys = iter(jax.random.split(jax.random.key(seed), 400))
    config = model.config
    ones = jnp.ones(config.d_model)

    def draw(weights: jax.Array) -> jax.Array:
        return jax.random.normal(next(keys), weights.shape) / np.sqrt(len(weights))

    def fresh(layer: Any) -> Any:
        attention = init_multi_head(
            next(keys), config.d_model, config.num_heads, num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )  # fmt: skip
        inner = (draw(layer.w_gate), draw(layer.w_up), draw(layer.w_down))
        return type(layer)(ones, attention, ones, *inner)

    layers = tuple(fresh(layer) for layer in model.params.layers)
    embedding = 0.02 * jax.random.normal(next(keys), model.params.token_embedding.shape)
    return model.params._replace(token_embedding=embedding, layers=layers, output_norm=ones)


def measures_of(name: str, model: Any, texts: int) -> dict[str, Any]:
    table = read_table(DATA / f"heads-{name}.csv")
    if name == "smollm2":
        untrained = untrained_smollm2(model, 0)
        sums = smollm2_sums(model)
        drawn = text_by_text(sums, untrained, windows(model, "validation", texts, 101))
    else:
        untrained = minilm.init_minilm(jax.random.key(0))
        drawn = text_by_text(minilm_sums(), untrained, *tokenize(model, sentences(texts)))
    total, found = add_texts(drawn), {}
    shape = (len(model.params.layers), model.params.layers[0].attention.w_q.shape[1])
    for title, measure in MEASURES.items():
        if ALONE.get(title, name) != name:
            continue
        of_random = np.asarray(total[measure].mean)
        even = float(total[measure].baseline_mean)
        if texts == 24:  # the same texts: the same even value as in the table
            assert np.isclose(even, table[f"{measure} (uninformed)"][0], rtol=1e-3)
        found[title] = {
            "trained": table[measure].reshape(-1, shape[1])[: shape[0]],
            "even": even,
            "untrained": of_random,
        }
    if name == "smollm2":
        heads = read_result(DATA / "heads.json")
        repeats = table["induction on repeats"].reshape(-1, shape[1])[: shape[0]]
        even = heads["nulls on repeats"]["induction"]
        found["induction on random repeats"] = {"trained": repeats, "even": even}
        lost = np.array(heads["importance"]["ablation"])[: shape[0]]
    else:
        lost = np.array(read_result(DATA / "pruning.json")["minilm"]["importance"]["ablation"])
    found["without it"] = {"trained": lost}
    return found


@experiment("explorer.json", digits=4, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    texts = 1 if run.quick else 24
    models: dict[str, Any] = {"smollm2": smollm2.load_smollm2(), "minilm": minilm.load_minilm()}
    if run.quick:
        models["smollm2"] = first_layers(models["smollm2"], 1)
    chosen = dict(list(SENTENCES.items())[: 1 if run.quick else None])
    folder = run.out / "explorer"
    if run.out == DATA:
        folder = ROOT / "book" / "_static" / "explorer"
    told = ("title", "text", "see")
    document: dict[str, Any] = {
        "config": {"texts": texts},
        "measures": {},
        "sentences": {key: {n: s[n] for n in told} for key, s in chosen.items()},
    }
    for name, model in models.items():
        longest = max(len(model.tokenizer.encode(s["text"]).ids) for s in chosen.values())
        of_text = maps_of(name, model, longest)
        for key, sentence in chosen.items():
            maps, file = of_text(sentence["text"]), folder / f"{name}-{key}.js"
            packed = json.dumps(pack(name, maps), separators=(",", ":"))
            write_atomic(file, f'mhaExplorerTake("{name}-{key}",{packed});\n'.encode())
            document["sentences"][key][name] = {
                "tokens": maps.tokens, "look": dict(zip(LOOK, sentence[name], strict=True)),
                "losses": maps.losses, "sha256": file_digest(file),
            }  # fmt: skip
            run.report(file.name)
        document["measures"][name] = measures_of(name, model, texts)
    return document
