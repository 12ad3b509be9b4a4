"""Numbers of attention sinks computed again: of SmolLM2, and of the stored models of two layers."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import sinks, sinks_training
from mha_book.storage import load_arrays, load_tree
from tests.stored.files import DATA, close, result
from tests.stored.trained_heads import language_model

NAME = "sinks.json"
SIZES = sinks.Sizes()
TEXTS = 2
SINK = ("whole", "no sink", "logits")
LATER = ("value 0", "value 0, upper layers")
CUT = ("whole", "gradient, with sink")


@functools.cache
def bench() -> sinks.Bench:
    return sinks.Bench(language_model(), SIZES)


@functools.cache
def changed(way: str, part: str) -> np.ndarray:
    """Losses of two texts, with the mean logits of the file."""
    ways = bench().ways if part == "sink" else bench().later_ways
    return bench().changed(ways(result(NAME)["logits"])[way], TEXTS)


@functools.cache
def cut(way: str) -> dict[str, np.ndarray]:
    found = bench().cut(*bench().cuts(result(NAME)["orders"])[way], TEXTS)
    return {part: np.array(losses) for part, losses in found.items()}


@functools.cache
def masses() -> dict[str, np.ndarray]:
    """Where the weight of two rows of each input goes."""
    return {name: bench().read(rows[:TEXTS]).mass for name, rows in bench().inputs().items()}


def check_masses(document: dict[str, Any]) -> None:
    for name, found in masses().items():
        told = document["mass"][name]
        close(found.mean((1, 2)), told["by text"][:TEXTS])
        close(found.mean(2)[..., 0], told["by layer"][:TEXTS])


def check_sink(document: dict[str, Any]) -> None:
    for part, names in (("sink", SINK), ("later", LATER)):
        for name in names:
            close(changed(name, part), document[part][name][:TEXTS])


def check_logits(document: dict[str, Any]) -> None:
    """The order of the random heads, and that the mean logits make the losses that are told."""
    key_heads = 3 * SIZES.layers
    rng = np.random.default_rng(24)
    for draw in range(SIZES.draws):
        assert document["orders"][f"random {draw}"] == rng.permutation(key_heads).tolist()


def check_cut(document: dict[str, Any]) -> None:
    for name in CUT:
        for part, found in cut(name).items():
            close(found, document["cut"][name][part][:TEXTS])


def check_stream(document: dict[str, Any]) -> None:
    for way in ("window", "first"):
        close(bench().streamed(bench().streams()[way], 1)[0], document["stream"][way][0])


# sinks-training.json: the models of the first seed, from their stored weights.


@functools.cache
def measured(form: str) -> dict[str, np.ndarray]:
    study = study_of_text()
    like = sinks_training.fresh(jax.random.key(0), study.config, form)
    stored = load_arrays(DATA / "sinks-training.safetensors")[0]
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), like)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32), load_tree(stored, half, form)
    )
    found = sinks_training.measure(params, study.windows, config=study.config, form=form)
    return {name: np.asarray(part) for name, part in found.items()}


@functools.cache
def study_of_text() -> Any:
    return sinks_training.Study(sinks_training.Sizes(), DATA)


def check_models(document: dict[str, Any], *forms: str) -> None:
    for form in forms:
        for name, found in measured(form).items():
            close(found, np.array(document["forms"][form][name])[0], rtol=5e-3, atol=3e-3)


def check_beginning(document: dict[str, Any]) -> None:
    """The losses of the first steps of a training, of the first two seeds."""
    study = sinks_training.Study(sinks_training.Sizes(), Path(tempfile.mkdtemp()))
    every = study.sizes.steps // 24
    losses = study.fit("gate", 2, every + 1)[1]
    told = np.array(document["forms"]["gate"]["training"])[:2, :2]
    close(losses[::every].T, told, rtol=0, atol=0.02)
