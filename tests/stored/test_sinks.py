"""Slices of what is stored of attention sinks, computed again; forgeries that they catch."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import sinks, sinks_training
from mha_book.storage import load_arrays, load_tree
from tests.stored.files import DATA, forged, result
from tests.stored.trained_heads import language_model

NAME, TRAINED = "sinks.json", "sinks-training.json"
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


@functools.cache
def streamed(way: str) -> np.ndarray:
    return bench().streamed(bench().streams()[way], 1)


def check_stream(document: dict[str, Any], ways: tuple[str, ...]) -> None:
    for way in ways:
        close(streamed(way)[0], document["stream"][way][0])


def close(found: Any, told: Any, **how: Any) -> None:
    np.testing.assert_allclose(found, told, **({"rtol": 2e-3, "atol": 1e-3} | how))


SLOW = pytest.param(check_masses, marks=pytest.mark.slow, id="check_masses")


@pytest.mark.needs_models
@pytest.mark.parametrize(
    "check", [check_sink, check_cut, check_logits, SLOW], ids=lambda check: check.__name__
)
def test_a_slice_computed_again(check):
    check(result(NAME))


@pytest.mark.needs_models
@pytest.mark.slow
def test_streams_computed_again():
    check_stream(result(NAME), ("window", "first"))


def sink_made_needless(document):
    document["later"]["value 0"] = document["later"]["whole"]


def a_cut_that_loses_less(document):
    found = document["cut"]["gradient, with sink"]
    found["text"] = document["cut"]["whole"]["text"]


def less_mass(document):
    found = document["mass"]["speeches, none"]
    found["by text"] = (0.9 * np.array(found["by text"])).tolist()


def chosen_draws(document):
    orders = document["orders"]
    orders["random 0"] = orders["random 0"][::-1]


@pytest.mark.needs_models
@pytest.mark.parametrize(
    "check, change",
    [
        (check_sink, sink_made_needless),
        (check_cut, a_cut_that_loses_less),
        (check_logits, chosen_draws),
        pytest.param(check_masses, less_mass, marks=pytest.mark.slow, id="less_mass"),
    ],
    ids=lambda each: each.__name__,
)
def test_forgeries_are_caught(check, change, tmp_path):
    with pytest.raises(AssertionError):
        check(forged(NAME, tmp_path, change))


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


def check_models(document: dict[str, Any], forms: tuple[str, ...]) -> None:
    for form in forms:
        for name, found in measured(form).items():
            close(found, np.array(document["forms"][form][name])[0], rtol=5e-3, atol=3e-3)


def test_trained_models_measured_again():
    check_models(result(TRAINED), ("softmax", "gate"))


@pytest.mark.slow
def test_the_other_trained_models_measured_again():
    check_models(result(TRAINED), ("logit", "sigmoid"))


@pytest.mark.slow
def test_the_beginning_of_a_training(tmp_path):
    """The losses of the first steps, of the first two seeds."""
    study = sinks_training.Study(sinks_training.Sizes(), tmp_path)
    every = study.sizes.steps // 24
    losses = study.fit("gate", 2, every + 1)[1]
    told = np.array(result(TRAINED)["forms"]["gate"]["training"])[:2, :2]
    np.testing.assert_allclose(losses[::every].T, told, atol=0.02)


@pytest.mark.parametrize("name, factor", [("mass", 0.5), ("loss", 0.98), ("largest", 0.7)])
def test_a_forged_training_is_caught(name, factor, tmp_path):
    def change(document):
        found = document["forms"]["gate"]
        found[name] = (factor * np.array(found[name])).tolist()

    with pytest.raises(AssertionError):
        check_models(forged(TRAINED, tmp_path, change), ("gate",))
