"""What the heads of SmolLM2 and MiniLM do, how much SmolLM2 needs them, and induction heads.

Measures all heads of both models on addresses (heads-smollm2.csv, heads-minilm.csv); scores the 270
heads of SmolLM2 by the gradient of their gates and by ablation; removes some; closes the heads with
the highest induction scores, and as many others of the same layers.
"""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.shared import SOURCES, Run, experiment, first_layers, gates_without
from mha_book.masks import padding
from mha_book.models import minilm, smollm2
from mha_book.models.text import load_speeches
from mha_book.models.tokens import tokenize
from mha_book.pruning import importance
from mha_book.pruning.order import removal_order
from mha_book.pruning.removal import mean_ablation
from mha_book.specialization.measures import add_texts, head_table, measure_heads, text_patterns
from mha_book.specialization.patterns import visible_pairs
from mha_book.specialization.synthetic import copied_positions, repeated_tokens
from mha_book.storage import write_table

SEEDS = "repeated sequences: 0 to rank, 1 to score; random importance: 0; controls: 0"
INPUTS = tuple(SOURCES)


# measured: windows that attention is measured on; gradients: windows that importance is averaged
# over, one a gradient; ablations: windows of the ablation, each closed head on all of them;
# context: tokens of a window, the first one included; sequences: repeated sequences, of (context
# - 1) / 2 tokens twice.
Sizes = fields(
    layers=30, measured=24, gradients=24, ablations=4, context=101, sequences=4, top=8,
    draws=10, fraction=0.3,
)  # fmt: skip
QUICK = Sizes(1, 2, 2, 1, 13, 2, 2, 1)


def addresses(split: str, count: int) -> list[str]:
    speeches = load_speeches(split)
    return [speeches[i].text for i in np.linspace(0, len(speeches) - 1, count).astype(int)]


def windows(model: Any, split: str, count: int, length: int) -> jax.Array:
    """Return the beginnings of evenly spaced addresses of a split, ``(B, T)``."""
    texts = addresses(split, count)
    rows = [model.tokenizer.encode(text[: 12 * length]).ids[:length] for text in texts]
    return jnp.asarray(np.array(rows, np.int32))


def repeats(config: Any, key: jax.Array, count: int, period: int) -> jax.Array:
    """Return random tokens of SmolLM2 repeated once, ``(B, 2 period + 1)``; token 0 begins each."""
    vocabulary = jnp.arange(1000, 40_000, dtype=jnp.int32)
    return repeated_tokens(key, count, period, vocabulary, first_id=config.pad_id)


def smollm2_sums(model: Any) -> Callable[[Any, jax.Array], dict[str, Any]]:

    @jax.jit
    def sums(params: Any, ids: jax.Array) -> dict[str, Any]:
        _, records = smollm2.forward_with_intermediates(params, ids, config=model.config)
        pairs = visible_pairs(smollm2.visible_tokens(None), *ids.shape)
        weights = [record.intermediates.weights for record in records]
        return measure_heads(weights, pairs, text_patterns(pairs, ids))

    return sums


def minilm_sums() -> Callable[[Any, jax.Array, jax.Array], dict[str, Any]]:
    """Return a compiled function likewise; its special tokens are the first and the last."""

    @jax.jit
    def sums(params: Any, ids: jax.Array, lengths: jax.Array) -> dict[str, Any]:
        _, records = minilm.encode_with_intermediates(params, ids, lengths)
        pairs = visible_pairs(padding(lengths, lengths), *ids.shape)
        place = jnp.arange(ids.shape[1])[None, :]
        special = (place == 0) | (place == lengths[:, None] - 1)
        weights = [record.intermediates.weights for record in records]
        return measure_heads(weights, pairs, text_patterns(pairs, ids, special))

    return sums


def text_by_text(sums: Callable[..., Any], params: Any, *batches: jax.Array) -> dict[str, Any]:
    rows = zip(*(np.asarray(batch)[:, None] for batch in batches), strict=True)
    found = [sums(params, *(jnp.asarray(x) for x in row)) for row in rows]
    return jax.tree.map(lambda *texts: jnp.concatenate(texts), *found)


def sentences(count: int) -> list[str]:
    """Return a sentence of middling length from each of evenly spaced validation addresses."""
    texts = addresses("validation", count)
    every = [[s.strip() for s in text.replace("\n", " ").split(". ")] for text in texts]
    return [next(s for s in found[3:] if 100 < len(s) < 240) + "." for found in every]


def write_heads(path: Path, sums: dict[str, Any], extra: dict[str, Any]) -> None:
    columns = head_table(add_texts(sums))
    for number, (name, of_one) in enumerate(sums.items()):
        drawn = jax.jit(lambda sums, key: sums.resampled(key).mean)(of_one, jax.random.key(number))
        low, high = jnp.quantile(drawn, jnp.array([0.025, 0.975]), axis=0)
        columns[f"{name} (low)"], columns[f"{name} (high)"] = (np.ravel(x) for x in (low, high))
    write_table(path, {**columns, **{name: np.ravel(x) for name, x in extra.items()}})


def gated_loss(config: Any) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:

    def loss(params: Any, gates: jax.Array, ids: jax.Array) -> jax.Array:
        return smollm2.loss(params, ids, config=config, gates=gates)

    return loss


def ablation(run: Run, sizes: Any, loss: Any, params: Any, ids: jax.Array, shape: Any) -> Any:
    """Return the rise of the loss without each head, each layer kept once it is there."""
    compiled, gates = jax.jit(loss), np.ones(shape, np.float32)
    base = float(compiled(params, jnp.asarray(gates), ids))

    def row(layer: int) -> list[float]:
        found = []
        for head in range(shape[1]):
            gates[layer, head] = 0
            found.append(float(compiled(params, jnp.asarray(gates), ids)) - base)
            gates[layer, head] = 1
        return found

    rows = [run.once(f"ablation {n}", sizes, functools.partial(row, n)) for n in range(shape[0])]
    return np.array(rows)


def controls(top: np.ndarray, shape: tuple[int, int], draws: int, seed: int) -> list[np.ndarray]:
    """Return sets of random heads: as many of each layer as ``top`` has, none of them its own."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(draws):
        heads = []
        for layer in sorted(set(top[:, 0].tolist())):
            own = top[top[:, 0] == layer, 1]
            free = np.setdiff1d(np.arange(shape[1]), own)
            chosen = rng.choice(free, min(len(own), len(free)), replace=False)
            heads += [(layer, int(head)) for head in chosen]
        found.append(np.array(heads))
    return found


def head_means(model: Any, params: Any, ids: jax.Array) -> jax.Array:
    """Return the mean output of every head over text, ``(L, N, C)``."""

    @jax.jit
    def means(params: Any, ids: jax.Array) -> jax.Array:
        _, records = smollm2.forward_with_intermediates(params, ids, config=model.config)
        return jnp.stack([r.intermediates.head_outputs.mean((0, 2)) for r in records])

    return jnp.mean(jnp.stack([means(params, row[None]) for row in ids]), 0)


def induction(model, params, scores, repeated, text, sizes) -> dict[str, Any]:
    """Return the losses with the induction heads closed, and with others of the same layers."""
    shape, period = scores.shape, (sizes.context - 1) // 2
    copied = np.asarray(copied_positions(repeated, period))[:, 1:]
    run = jax.jit(
        lambda params, ids, gates: smollm2.token_losses(
            params, ids, config=model.config, gates=gates
        )
    )
    top = removal_order(-scores)[: sizes.top]
    means = head_means(model, params, text)

    def losses(heads: np.ndarray | Sequence[Any], by_mean: bool = False) -> dict[str, float]:
        gates = gates_without(heads, shape)
        changed = mean_ablation(params, gates, means * float(by_mean))
        on_repeats = np.asarray(run(changed, repeated, gates))
        return {
            "copied": float(on_repeats[copied].mean()),
            "first copy": float(on_repeats[:, : period - 1].mean()),
            "text": float(np.asarray(run(changed, text, gates)).mean()),
        }

    others = controls(top, shape, sizes.draws, seed=0)
    return {
        "top": top, "scores of the top": scores[tuple(top.T)], "whole": losses(top[:0]),
        "zero": losses(top), "mean": losses(top, by_mean=True), "controls": others,
        "zero controls": [losses(heads) for heads in others],
        "mean controls": [losses(heads, by_mean=True) for heads in others],
    }  # fmt: skip


@experiment("heads.json", Sizes(), QUICK, digits=6, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    config, params = model.config, model.params
    shape, period = (sizes.layers, config.num_heads), (sizes.context - 1) // 2
    ranking = windows(model, "train", sizes.gradients, sizes.context)
    scoring = windows(model, "validation", sizes.measured, sizes.context)
    loss, gates = gated_loss(config), jnp.ones(shape)
    begun = time.monotonic()
    step = jax.jit(lambda *given: importance.taylor(loss, *given))
    signed = np.stack([np.asarray(step(params, gates, row[None])) for row in ranking])
    document: dict[str, Any] = {
        "gradient": {
            "seconds": time.monotonic() - begun,
            "tokens": int(ranking.size),
        }
    }
    scores = {
        "gate gradient": abs(signed).mean(0),
        "taylor": signed.mean(0),
        "weight norm": np.asarray(jax.jit(importance.weight_norm)(params)),
        "random": np.asarray(jax.random.uniform(jax.random.key(0), shape)),
    }
    run.report("gradients")

    draw = jax.jit(lambda key: repeats(config, key, sizes.sequences, period))
    sums = smollm2_sums(model)
    on_text = text_by_text(sums, params, scoring)
    on_repeats = add_texts(text_by_text(sums, params, draw(jax.random.key(0))))
    names = ("induction", "same token")
    scored = {f"{name} on repeats": np.asarray(on_repeats[name].mean) for name in names}
    document["nulls on repeats"] = {n: float(on_repeats[n].baseline_mean) for n in names}
    write_heads(run.out / "heads-smollm2.csv", on_text, scored)
    run.record(run.out / "heads-smollm2.csv")
    run.report("measures of SmolLM2")
    if not run.quick:
        encoder = minilm.load_minilm()
        batch = tokenize(encoder, sentences(sizes.measured))
        on_sentences = text_by_text(minilm_sums(), encoder.params, *batch)
        write_heads(run.out / "heads-minilm.csv", on_sentences, {})
        run.record(run.out / "heads-minilm.csv")
        run.report("measures of MiniLM")

    repeated = draw(jax.random.key(1))
    text = scoring[:: max(1, len(scoring) // sizes.sequences)][: sizes.sequences]
    found = scored["induction on repeats"]
    document["induction"] = induction(model, params, found, repeated, text, sizes)
    run.report("induction heads")

    begun, few = time.monotonic(), ranking[: sizes.ablations]
    scores["ablation"] = ablation(run, sizes, loss, params, few, shape)
    document["ablation"] = {"seconds": time.monotonic() - begun, "tokens": int(few.size)}
    return {**document, "importance": scores}
