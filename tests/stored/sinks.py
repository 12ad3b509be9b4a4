"""Numbers of attention sinks computed again: of SmolLM2, and of the stored models of two layers."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import resting, sinks, sinks_training
from mha_book.storage import load_arrays, load_tree
from tests.stored.chance import drawn
from tests.stored.files import DATA, recomputed, result
from tests.stored.trained_heads import Found, language_model

TWO = np.array(drawn("sinks", 2, range(8)))  # texts, of those that all parts have


@functools.cache
def bench() -> sinks.Bench:
    return sinks.Bench(language_model(), sinks.Sizes())


@recomputed
def masses() -> Found:
    """Where the weight of two rows of each input goes."""
    for name, rows in bench().inputs().items():
        found = bench().read(rows[TWO]).mass
        yield ("mass", name, "by text", TWO), found.mean((1, 2))
        yield ("mass", name, "by layer", TWO), found.mean(2)[..., 0]


@recomputed
def changed_sinks(count: int) -> Found:
    """Losses of two texts, with the mean logits of the file."""
    logits = result("sinks.json")["logits"]
    for part, ways in (("sink", bench().ways(logits)), ("later", bench().later_ways(logits))):
        for name in drawn(part, count, ways):
            yield (part, name, TWO), bench().changed(ways[name], TWO)


@recomputed
def random_orders() -> Found:
    rng = np.random.default_rng(24)
    for draw in range(sinks.Sizes().draws):
        yield ("orders", f"random {draw}"), rng.permutation(90)


@recomputed
def cut(count: int) -> Found:
    ways = bench().cuts(result("sinks.json")["orders"])
    for name in drawn("cut", count, ways):
        for part, found in bench().cut(*ways[name], TWO).items():
            yield ("cut", name, part, TWO), found


@recomputed
def streams() -> Found:
    (text,) = drawn("stream", 1, range(sinks.Sizes().streams))
    for way in drawn("ways of streams", 2, bench().streams()):
        yield ("stream", way, text), bench().streamed(bench().streams()[way], np.array([text]))[0]


# sinks-training.json: the models of the first seed, from their stored weights.


@functools.cache
def study_of_text() -> Any:
    return sinks_training.Study(sinks_training.Sizes(), Path(tempfile.mkdtemp()))


@recomputed
def models(*forms: str) -> Found:
    study, stored = study_of_text(), load_arrays(DATA / "sinks-training.safetensors")[0]
    for form in forms:
        like = sinks_training.fresh(jax.random.key(0), study.config, form)
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), like)
        loaded = load_tree(stored, half, form)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), loaded)
        found = sinks_training.measure(params, study.windows, config=study.config, form=form)
        for name, part in found.items():
            yield ("forms", form, name, 0), part, {"rtol": 5e-3, "atol": 3e-3}


@recomputed
def beginning() -> Found:
    """The losses of the first steps of a training, of the first two seeds."""
    every = study_of_text().sizes.steps // 24
    losses = study_of_text().fit("gate", 2, every + 1)[1]
    yield ("forms", "gate", "training", np.s_[:2, :2]), losses[::every].T, {"rtol": 0, "atol": 0.02}


# sinks-resting.json


@recomputed
def matches() -> Found:
    """The sink's weight and scores of two pairs of sequences, with a match and without."""
    bench = resting.Bench(language_model(), resting.Sizes())
    for name, parts in bench.matched(TWO).items():
        for what, found in parts.items():
            for group in ("matching", "other late"):
                yield ("match", name, what, group, TWO), found[group]


@recomputed
def resting_heads() -> Found:
    """What the addresses give."""
    bench = resting.Bench(language_model(), resting.Sizes())
    found = bench.addresses()
    for part in ("scores", "lengths"):
        for name, values in getattr(bench, part)(found).items():
            yield (part, name), values, {"rtol": 1e-2, "atol": 2e-2}
