"""What the explorer of heads shows: maps of all heads on short sentences, and their measures.

    python -m experiments.explorer_maps [--quick]

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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.heads import minilm_sums, sentences, smollm2_sums, text_by_text, windows
from experiments.shared import ROOT, SOURCES, arguments, first_layers, store
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import token_strings, tokenize
from mha_book.multihead.parameters import init_multi_head
from mha_book.specialization.measures import add_texts
from mha_book.storage import file_digest, read_result, read_table, write_atomic

__all__ = ["MEASURES", "SENTENCES", "Look", "Maps", "Sentence", "main", "maps_of"]

COMMAND = "python -m experiments.explorer_maps"
INPUTS = (*SOURCES, "heads.json", "pruning.json")
SEEDS = "untrained models: 0"
DATA = ROOT / "book" / "data"
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


class Look(NamedTuple):
    """Where to begin with a sentence in a model: a head, one of its tokens, and what it looks at.

    Args:
        layer, head: the head.
        query: the number of the token that looks.
        key: the number of the token that has most of its attention.
    """

    layer: int
    head: int
    query: int
    key: int


class Sentence(NamedTuple):
    """A sentence of the explorer.

    Args:
        title: what the list calls it.
        text: the text.
        see: what a reader may look for.
        smollm2, minilm: where to begin.
    """

    title: str
    text: str
    see: str
    smollm2: Look
    minilm: Look


SENTENCES = {
    "thirsty": Sentence(
        "it was thirsty",
        "The cat drank the milk because it was thirsty.",
        "Who was thirsty? The other sentence differs in one word.",
        Look(13, 8, 9, 2),
        Look(3, 1, 7, 2),
    ),
    "fresh": Sentence(
        "it was fresh",
        "The cat drank the milk because it was fresh.",
        "What was fresh? The other sentence differs in one word.",
        Look(13, 8, 9, 5),
        Look(3, 1, 7, 5),
    ),
    "repeat": Sentence(
        "a repeat",
        "Zorvan met Quillby at noon. Zorvan met Quillby at noon",
        "No model knows these names. Where does it look for what comes next, the second time?",
        Look(18, 6, 15, 6),
        Look(2, 9, 15, 5),
    ),
    "names": Sentence(
        "two names",
        "When Mary and John went to the store, John gave a drink to",
        "One name stands twice. Which one should follow?",
        Look(5, 6, 10, 4),
        Look(2, 9, 10, 4),
    ),
    "keys": Sentence(
        "subject and verb",
        "The keys to the old cellar hang beside the stove.",
        "What hangs? Another noun stands nearer to the verb.",
        Look(13, 8, 8, 2),
        Look(5, 11, 7, 2),
    ),
    "quote": Sentence(
        "quotation and bracket",
        'She said "we are late" and closed the door (slowly).',
        "What is closed has been opened: where do the closing marks look?",
        Look(12, 3, 7, 3),
        Look(1, 6, 14, 12),
    ),
    "list": Sentence(
        "a list",
        "We bought apples, pears, plums, and figs, and we ate the figs.",
        "What does an item look at, what a comma, what a verb?",
        Look(12, 8, 15, 2),
        Look(2, 9, 19, 12),
    ),
    "count": Sentence(
        "numbers",
        "2, 4, 6, 8, 10, 12,",
        "To count on, the number before is needed.",
        Look(20, 8, 12, 10),
        Look(5, 2, 9, 11),
    ),
    "rose": Sentence(
        "one word again",
        "A rose is a rose is a rose.",
        "A word that stood there before: some heads look at it, others at what followed it.",
        Look(9, 4, 5, 2),
        Look(2, 9, 2, 8),
    ),
    "code": Sentence(
        "code",
        "def add(a, b):\n    return a + b",
        "Where does a name in the body look, and what does the sign + look at?",
        Look(8, 0, 10, 4),
        Look(1, 7, 3, 7),
    ),
    "capitals": Sentence(
        "a pattern of facts",
        "Paris is in France, Rome is in Italy, Tokyo is in Japan",
        "To say where Tokyo is, the last “in” needs the city.",
        Look(23, 4, 13, 11),
        Look(2, 9, 12, 2),
    ),
    "words": Sentence(
        "words without a sentence",
        "stone quickly seven under blue the walk of nine",
        "No grammar and no meaning: a head that looks by place does so all the same.",
        Look(16, 0, 5, 4),
        Look(0, 2, 5, 4),
    ),
}


class Maps(NamedTuple):
    """What the heads of a model do with one sentence.

    Args:
        tokens: ``T`` strings.
        weights: ``(L, N, T, T)``.
        values: ``(L, N, T)``, the length of the value of each key behind the output projection, as
            a share of the longest of the head.
        losses: ``(T - 1,)``, of each token but the first, in nats; none for MiniLM.
        without: ``(L, N, T - 1)``, the rise of these with the head closed; of MiniLM ``(L, N)``, 1
            less the cosine of the embedding with that of the whole model.
    """

    tokens: list[str]
    weights: np.ndarray
    values: np.ndarray
    losses: np.ndarray
    without: np.ndarray


def maps_of(
    name: str, model: Any, width: int, only: list[tuple[int, int]] | None = None
) -> Callable[[str], Maps]:
    """Return a function from a text to the maps of all heads.

    Args:
        name: smollm2 or minilm.
        model: the loaded model.
        width: tokens that sentences are filled up to, so that one program serves all of them.
        only: the heads to close; None for each of them. The others have NaN in ``without``.
    """
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

    if name == "smollm2":

        @jax.jit
        def whole(params: Any, ids: jax.Array, length: jax.Array) -> Any:
            options = {"config": model.config, "return_intermediates": True}
            return inside(smollm2.forward(params, ids, length, **options)[1])

        @jax.jit
        def effect(params: Any, ids: jax.Array, length: jax.Array, gates: jax.Array) -> jax.Array:
            def one(g: jax.Array) -> jax.Array:
                return smollm2.token_losses(params, ids, length, config=model.config, gates=g)

            return jax.vmap(one)(gates)[:, 0]

    else:

        @jax.jit
        def whole(params: Any, ids: jax.Array, length: jax.Array) -> Any:
            return inside(minilm.encode(params, ids, length, return_intermediates=True)[1])

        @jax.jit
        def effect(params: Any, ids: jax.Array, length: jax.Array, gates: jax.Array) -> jax.Array:
            def one(g: jax.Array) -> jax.Array:
                hidden = minilm.encode(params, ids, length, gates=g)
                return minilm.mean_pool(hidden[-1], length)

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
    """Return the arrays of a sentence in base64."""
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
            next(keys),
            config.d_model,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        inner = (draw(layer.w_gate), draw(layer.w_up), draw(layer.w_down))
        return type(layer)(ones, attention, ones, *inner)

    layers = tuple(fresh(layer) for layer in model.params.layers)
    embedding = 0.02 * jax.random.normal(next(keys), model.params.token_embedding.shape)
    return model.params._replace(token_embedding=embedding, layers=layers, output_norm=ones)


def measures_of(name: str, model: Any, texts: int) -> dict[str, Any]:
    """Return the measures of all heads of a model, with even and untrained values beside them."""
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


def main(given: list[str] | None = None) -> Path:
    """Run the experiment and return the path of the stored result."""
    options = arguments(__doc__ or "", given)
    command, begin = COMMAND + (" --quick" if options.quick else ""), time.monotonic()
    texts = 1 if options.quick else 24
    models: dict[str, Any] = {
        "smollm2": smollm2.load_smollm2(),
        "minilm": minilm.load_minilm(),
    }
    if options.quick:
        models["smollm2"] = first_layers(models["smollm2"], 1)
    chosen = dict(list(SENTENCES.items())[: 1 if options.quick else None])
    folder = options.out / "explorer"
    if options.out == DATA:
        folder = ROOT / "book" / "_static" / "explorer"
    document: dict[str, Any] = {"config": {"texts": texts}, "measures": {}, "sentences": {}}
    for key, sentence in chosen.items():
        document["sentences"][key] = {"title": sentence.title, "text": sentence.text,
                                      "see": sentence.see}  # fmt: skip
    for name, model in models.items():
        longest = max(len(model.tokenizer.encode(s.text).ids) for s in chosen.values())
        of_text = maps_of(name, model, longest)
        for key, sentence in chosen.items():
            maps = of_text(sentence.text)
            file = folder / f"{name}-{key}.js"
            packed = json.dumps(pack(name, maps), separators=(",", ":"))
            write_atomic(file, f'mhaExplorerTake("{name}-{key}",{packed});\n'.encode())
            document["sentences"][key][name] = {
                "tokens": maps.tokens,
                "look": getattr(sentence, name)._asdict(),
                "losses": maps.losses,
                "sha256": file_digest(file),
            }
            print(f"{file.name}: {time.monotonic() - begin:.0f} s", flush=True)
        document["measures"][name] = measures_of(name, model, texts)
    path = options.out / "explorer.json"
    store(path, command, document, digits=4, seeds=SEEDS, inputs=INPUTS)
    print(f"{path}: {time.monotonic() - begin:.0f} s")
    return path


if __name__ == "__main__":
    main()
