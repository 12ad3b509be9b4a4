"""Dropout at three places of attention, and what is left when heads are removed.

Trains a tiny transformer with every setting of dropout and from every seed (all seeds at once),
on the whole text and on two thousand characters of it. Then, on years that were not trained on:
the loss; what each place adds to a layer's output; the loss without each set of heads. Stores
book/data/gradients-dropout.json and, of some models, the weights beside it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.shared import Run, Text, character_model, experiment, load_text, slug
from experiments.training import TrainResult, init_state, make_train_step, train
from mha_book.layers import layer_norm
from mha_book.models import tiny
from mha_book.models.tokens import evenly_spaced_windows, sample_windows
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.layer import multi_head_attention
from mha_book.storage import tree_arrays

SEEDS = "models and batches: 0 to 4; noise: 1000 to 1004"
INPUTS = ("sotu",)
RATE = 0.1
SETTINGS = {
    "none": Dropout(), "weights": Dropout(weights=RATE), "heads": Dropout(heads=RATE),
    "output": Dropout(output=RATE), "weights and output": Dropout(weights=RATE, output=RATE),
    "all three": Dropout(RATE, RATE, RATE),
}  # fmt: skip
PLACES = ("weights", "heads", "output")
KEPT = ("none", "weights and output")  # whose weights are stored, of the first seed


# scarce: thousands of characters of the second text; windows: of the years not trained on, for
# the loss at the end.
Sizes = fields(
    seeds=5, steps=400, scarce_steps=250, batch=16, context=32, d_model=64, num_layers=2,
    num_heads=4, learning_rate=3e-3, scarce=2, windows=256, removal_windows=24, draws=200,
    draw_windows=8,
)  # fmt: skip
QUICK = Sizes(2, 4, 4, 2, 12, 16, 1, 2, windows=8, removal_windows=2, draws=20, draw_windows=2)


def texts(text: Text, sizes: Sizes) -> dict[str, jax.Array]:
    """Return the two texts to train on: all of it, and pieces of a thousand characters."""
    pieces = evenly_spaced_windows(text.train, sizes.scarce, 1000)
    return {"whole text": text.train, "scarce text": pieces.ravel()}


def fit(config, sizes, steps, data, validation, name, checkpoint) -> TrainResult:
    warm_up = (0.0, sizes.learning_rate, steps // 12)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(*warm_up, steps))
    step = make_train_step(
        lambda params, batch, key: tiny.loss(params, batch, config=config, rng_key=key),
        lambda data, key: sample_windows(data, key, sizes.batch, sizes.context + 1),
        optimizer,
    )
    keys = jax.vmap(jax.random.key)(jnp.arange(sizes.seeds))
    state = jax.vmap(lambda key: init_state(tiny.init_tiny(key, config), optimizer, key))(keys)
    windows = evenly_spaced_windows(validation, max(sizes.windows // 4, 2), sizes.context + 1)

    def evaluate(params: Any, data: jax.Array) -> dict[str, jax.Array]:
        del data
        return {"validation": jax.vmap(lambda p: tiny.loss(p, windows, config=config))(params)}

    return train(
        jax.vmap(step, in_axes=(0, None)), state, steps, data=data, checkpoint=checkpoint,
        evaluate=evaluate, evaluate_every=50, config={**sizes._asdict(), "name": name}, name=name,
    )  # fmt: skip


def noise(params, token_ids, rng_key, config, draws) -> dict[str, Any]:
    """Return what dropout at each place does to the attention of every layer, drawn and derived."""
    _, records = tiny.forward_with_intermediates(params, token_ids, config=config)
    attention: dict[str, Any] = {"is_causal": True, "angles": tiny.angles(config, token_ids)}
    found: dict[str, Any] = {}
    for number, place in enumerate(PLACES):
        rates = Dropout(**{place: RATE})
        key = jax.random.fold_in(rng_key, number)
        rows = []
        for layer, record in zip(params.layers, records, strict=True):
            inputs = layer_norm(record.inputs, *layer.attention_norm, config.epsilon)
            plain = multi_head_attention(layer.attention, inputs, **attention)

            def deviation(key: jax.Array, layer=layer, inputs=inputs, plain=plain, rates=rates):
                options = {"dropout": rates, "rng_key": key, **attention}
                return multi_head_attention(layer.attention, inputs, **options) - plain

            def add(sums: tuple, key: jax.Array, deviation=deviation) -> tuple:
                moved = deviation(key)
                return (sums[0] + moved, sums[1] + jnp.square(moved)), None

            zero = jnp.zeros_like(plain)
            keys = jax.random.split(key, draws)
            (total, squares), _ = jax.lax.scan(add, (zero, zero), keys)
            mean, variance = total / draws, squares / draws
            error = jnp.sqrt(variance / draws)
            power = jnp.mean(jnp.square(plain))
            rows.append(
                {
                    "beyond_three_errors": jnp.mean(jnp.abs(mean) > 3 * error, dtype=plain.dtype),
                    "variance": jnp.mean(variance) / power,
                    "variance_by_formula": jnp.mean(predicted(place, layer, record, plain)) / power,
                }
            )
        found[place] = {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}
    return found


def predicted(place: str, layer: tiny.TinyParams, record: Any, plain: jax.Array) -> jax.Array:
    """Return the variance of a layer's output by formula, ``(B, T, D)``.

    A factor has the variance rate / (1 - rate), and the output is a sum of independent terms.
    """
    inside, w_o = record.intermediates, layer.attention.w_o
    spread = RATE / (1 - RATE)
    if place == "output":
        return spread * jnp.square(plain)
    if place == "heads":
        terms = jnp.square(inside.head_outputs), jnp.square(w_o)
        return spread * jnp.einsum("bhic,hcd->bid", *terms)
    moved = jnp.einsum("bhjc,hcd->bhjd", inside.value, w_o)  # what one pair adds for weight 1
    return spread * jnp.einsum("bhij,bhjd->bid", jnp.square(inside.weights), jnp.square(moved))


def removals(params, token_ids, config) -> tuple[jax.Array, np.ndarray]:
    """Return the loss without every set of heads, and the gates of each set."""
    heads = config.num_layers * config.num_heads
    removed = (np.arange(2**heads)[:, None] >> np.arange(heads)) & 1
    gates = jnp.asarray(1.0 - removed, jnp.float32)
    gates = gates.reshape(-1, config.num_layers, config.num_heads)

    @jax.jit
    def table(params: Any, gates: jax.Array) -> jax.Array:
        def of_one(params: Any) -> jax.Array:
            return jax.lax.map(
                lambda g: tiny.loss(params, token_ids, config=config, gates=g), gates
            )

        return jax.lax.map(of_one, params)

    return table(params, gates), removed


@experiment("gradients-dropout.json", Sizes(), QUICK, digits=6, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    text = load_text()
    base = character_model(text, sizes)

    def cut(data: jax.Array, count: int, length: int = sizes.context + 1) -> jax.Array:
        return evenly_spaced_windows(data, count, length)

    settings = {name: SETTINGS[name] for name in (KEPT if run.quick else SETTINGS)}
    regimes = texts(text, sizes)
    if run.quick:
        del regimes["scarce text"]
    document: dict[str, Any] = {
        "config": {**sizes._asdict(), "rate": RATE}, "model": dataclasses.asdict(base),
        "settings": {name: dataclasses.asdict(rates) for name, rates in settings.items()},
        **{regime: {} for regime in regimes}, "removal": {},
    }  # fmt: skip
    models: dict[str, Any] = {}
    score = jax.jit(jax.vmap(lambda p, t: tiny.loss(p, t, config=base), in_axes=(0, None)))
    for regime, data in regimes.items():
        steps = sizes.steps if regime == "whole text" else sizes.scarce_steps
        for setting, rates in settings.items():
            name = f"{regime}, {setting}"
            config = dataclasses.replace(base, dropout=rates)
            checkpoint = run.work / f"dropout-{slug(name)}.safetensors"
            trained = fit(config, sizes, steps, data, text.validation, name, checkpoint)
            params = trained.state.params
            document[regime][setting] = {
                "validation": score(params, cut(text.validation, sizes.windows)),
                "curve_validation": trained.evaluations["validation"].T,
            }
            run.report(name)
            if regime == "whole text":
                few = cut(text.validation, sizes.removal_windows)
                document["removal"][setting], _ = removals(params, few, config)
                models[setting] = params
    several = cut(text.validation, sizes.draw_windows, sizes.context)
    keys = jax.vmap(jax.random.key)(1000 + jnp.arange(sizes.seeds))
    measured = jax.jit(
        lambda models, keys: jax.lax.map(
            lambda pair: noise(pair[0], several, pair[1], base, sizes.draws), (models, keys)
        )
    )
    document["noise"] = measured(models["none"], keys)
    arrays: dict[str, np.ndarray] = {}
    for setting in KEPT:
        arrays |= tree_arrays(jax.tree.map(lambda leaf: leaf[0], models[setting]), setting)
    described = {"config": dataclasses.asdict(base), "characters": text.characters}
    run.save("gradients-dropout.safetensors", arrays, described)
    return document
