"""Numbers of trainings computed again: from stored weights, or by training a few seeds anew.

On one machine a training gives the same bits; between machines and versions its rounding grows with
the steps, so that a training of hundreds of steps is compared within :data:`DRIFT`, in nats or
shares. What is computed is kept, so that a forged file costs no second training.
"""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from experiments import dropout, emergence, gates, gates_quiet, hand_gradients, sharing
from experiments.emergence_training import measure
from experiments.gates_training import Runs, Weights, fixed
from experiments.gates_training import Sizes as GateSizes
from experiments.gates_training import Study as GateStudy
from experiments.shared import load_text
from experiments.sharing_training import Sizes, Study, program
from experiments.training import train
from mha_book.models import tiny
from mha_book.pruning.hard_concrete import HardConcrete
from mha_book.specialization.synthetic import ProbeTask, probe_sequences
from mha_book.storage import load_arrays, load_tree
from tests.stored.files import DATA, result

DRIFT = 0.02
FORWARD: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4}


def near(found: Any, told: Any, apart: float = DRIFT) -> None:
    np.testing.assert_allclose(found, told, rtol=0, atol=apart)


def a_place() -> Path:
    """A folder for checkpoints that nothing goes on from."""
    return Path(tempfile.mkdtemp())


# emergence.json


@functools.cache
def probe_config() -> tiny.TinyConfig:
    task = ProbeTask()
    return tiny.TinyConfig(
        task.vocabulary, task.length, 32, 1, 4, head_dim=8, d_hidden=0, positions="rotary",
        use_bias=False, rope_theta=100.0,
    )  # fmt: skip


@functools.cache
def of_stored_weights() -> dict[str, np.ndarray]:
    """Roles and losses of the 16 stored models, on the sequences of the experiment."""
    config, task = probe_config(), ProbeTask()
    keys = jax.vmap(jax.random.key)(jnp.arange(16))
    start = jax.jit(jax.vmap(lambda key: tiny.init_tiny(key, config)))(keys)
    models = load_tree(load_arrays(DATA / "emergence.safetensors")[0], start, "base")
    drawn = jax.jit(probe_sequences, static_argnums=(1, 2))(jax.random.key(2**20 + 1), task, 256)
    run = jax.jit(lambda params: jax.lax.map(lambda p: measure(p, config, task, drawn), params))
    return {
        when: jax.tree.map(np.asarray, run(p)) for when, p in (("start", start), ("end", models))
    }


def check_stored_models(document: dict[str, Any]) -> None:
    """Roles and losses of all seeds, before and after."""
    found, seeds = of_stored_weights(), document["seeds"]
    for when, place in (("start", 0), ("end", -1)):
        for name in ("roles", "losses"):
            told = np.array(seeds[name])[:, place]
            np.testing.assert_allclose(found[when][name], told, rtol=2e-3, atol=2e-4)
    last = seeds["runs"]["base"]["last roles"]
    np.testing.assert_array_equal(last, np.array(seeds["roles"])[:, -1])


@functools.cache
def probe_study() -> emergence.SeedStudy:
    return emergence.SeedStudy(emergence.Sizes(), a_place())


NUDGES: dict[str, int | None] = {"place": 0, "content": 1, "random": None}


@functools.cache
def nudged(which: tuple[tuple[str, int], ...]) -> Any:
    """Nudged models trained anew, all of them in one training."""
    study = probe_study()
    used = study.program
    starts = {kind: study.nudged(NUDGES[kind], 0.2) for kind in {kind for kind, _ in which}}
    picked = [jax.tree.map(lambda leaf, s=seed: leaf[s], starts[kind]) for kind, seed in which]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *picked)
    keys = study.own[np.array([seed for _, seed in which])]
    state = used.start(params, keys)
    options = {"data": used.data, "evaluate": used.evaluate, "evaluate_every": 250}
    return train(used.step, state, 250, **options).evaluations


def check_nudges(document: dict[str, Any], which: tuple[tuple[str, int], ...]) -> None:
    """Where nudged heads end up, for some seeds of each nudge."""
    found = nudged(which)
    for row, (kind, seed) in enumerate(which):
        told = document["seeds"]["runs"][f"nudge {kind} 0.2"]
        near(found["roles"][0][row], told["first roles"][seed], 1e-3)
        near(found["roles"][-1][row], told["last roles"][seed])
        near(found["losses"][-1][row], told["last losses"][seed])


def wins(document: dict[str, Any]) -> dict[str, int]:
    """How often the head that was nudged leads in its role, of 16."""
    found = {}
    for kind, role in (("place", 0), ("content", 1)):
        last = np.array(document["seeds"]["runs"][f"nudge {kind} 0.2"]["last roles"])
        found[kind] = int((last[..., role].argmax(1) == 0).sum())
    return found


# gradients-dropout.json


@functools.cache
def text() -> Any:
    return load_text()


@functools.cache
def dropout_models() -> dict[str, Any]:
    arrays, described = load_arrays(DATA / "gradients-dropout.safetensors")
    config = tiny.TinyConfig(**described["config"])
    like = jax.eval_shape(lambda: tiny.init_tiny(jax.random.key(0), config))
    return {"config": config} | {name: load_tree(arrays, like, name) for name in dropout.KEPT}


@functools.cache
def dropout_numbers(setting: str) -> dict[str, Any]:
    """Losses of the stored model of a setting, whole and without every set of its heads."""
    models, sizes = dropout_models(), dropout.Sizes()
    config, params = models["config"], models[setting]
    score = jax.jit(tiny.loss, static_argnames="config")
    found = {
        name: float(
            score(
                params,
                dropout.evenly_spaced_windows(data, sizes.windows, sizes.context + 1),
                config=config,
            )
        )
        for name, data in (("validation", text().validation), ("training", text().train))
    }
    few = dropout.evenly_spaced_windows(text().validation, sizes.removal_windows, sizes.context + 1)
    one = jax.tree.map(lambda leaf: leaf[None], params)
    return found | {"removal": np.asarray(dropout.removals(one, few, config)[0][0])}


def check_dropout(document: dict[str, Any]) -> None:
    """The first seed of the two settings whose weights are stored: losses, all sets of heads."""
    for setting in dropout.KEPT:
        found = dropout_numbers(setting)
        told = document["whole text"][setting]
        for name in ("validation", "training"):
            np.testing.assert_allclose(found[name], told[name][0], **FORWARD)
        np.testing.assert_allclose(found["removal"], document["removal"][setting][0], **FORWARD)


@functools.cache
def dropout_noise(draws: int) -> Any:
    models, sizes = dropout_models(), dropout.Sizes()
    several = dropout.evenly_spaced_windows(text().validation, sizes.draw_windows, sizes.context)
    run = jax.jit(lambda p, key: dropout.noise(p, several, key, models["config"], draws))
    return jax.tree.map(np.asarray, run(models["none"], jax.random.key(1000)))


def check_noise(document: dict[str, Any], draws: int) -> None:
    """What dropout at each place adds: by formula, and drawn where there are as many draws."""
    found, drawn = dropout_noise(draws), ("variance", "loss_with_dropout")
    for place in dropout.PLACES:
        told = document["noise"][place]
        for name in ("variance_by_formula", *(drawn if draws == dropout.Sizes().draws else ())):
            np.testing.assert_allclose(found[place][name], told[name][0], rtol=0.01)


@functools.cache
def trained_with(regime: str, setting: str) -> dict[str, float]:
    """The losses of the first seed of a setting, trained anew."""
    sizes = dropout.Sizes(seeds=1)
    base, data = dropout_models()["config"], dropout.texts(text(), sizes)[regime]
    config = dataclasses.replace(base, dropout=dropout.SETTINGS[setting])
    steps = sizes.steps if regime == "whole text" else sizes.scarce_steps
    place = a_place() / "run.safetensors"
    done = dropout.fit(config, sizes, steps, data, text().validation, "again", place)
    params = jax.tree.map(lambda leaf: leaf[0], done.state.params)
    score = jax.jit(tiny.loss, static_argnames="config")
    return {
        name: float(
            score(
                params,
                dropout.evenly_spaced_windows(each, sizes.windows, sizes.context + 1),
                config=base,
            )
        )
        for name, each in (("validation", text().validation), ("training", data))
    }


def check_dropout_training(document: dict[str, Any], regime: str, setting: str) -> None:
    found, told = trained_with(regime, setting), document[regime][setting]
    for name, value in found.items():
        near(value, told[name][0])


# gradients-training.json


@functools.cache
def first_losses(dtype: str, steps: int) -> Any:
    with jax.enable_x64(True):
        sizes = hand_gradients.Sizes(steps=steps)
        result, _ = hand_gradients.run(text(), sizes, jnp.dtype(dtype), None)
        return {name: np.asarray(x, np.float64) for name, x in result.metrics.items()}


def check_hand_gradients(document: dict[str, Any], dtype: str, steps: int) -> None:
    """The first steps of the training by hand, at the losses and the size of the gradients."""
    found, told = first_losses(dtype, steps), document[dtype]
    for name in ("manual", "reference"):
        close = {"rtol": 1e-4 if dtype == "float32" else 1e-9}
        np.testing.assert_allclose(found[f"loss {name}"], told["losses"][name][:steps], **close)
    assert len(told["losses"]["manual"]) == 200
    norms = told["parameters_apart"]["norm_of_the_rest_by_step"][:steps]
    assert np.isfinite(norms).all()


# sharing.json


@functools.cache
def shared_curve(name: str, steps: int) -> np.ndarray:
    """The losses of the first seed of a model, at every hundredth step of a schedule of 800."""
    sizes = Sizes(seeds=1)
    study = Study(sizes, a_place())
    config = sharing.variants(study.base, sizes.shared)[name]
    used = program(config, sizes.batch, sizes.context)
    schedule = {"steps": jnp.float32(sizes.steps), "rate": jnp.float32(sizes.learning_rate)}
    options = {"data": study.data | schedule, "evaluate": used.evaluate, "evaluate_every": 100}
    found = train(used.step, used.start(study.keys), steps, **options).evaluations
    return np.asarray(found["validation"])[:, 0]


def check_sharing(document: dict[str, Any], name: str, steps: int) -> None:
    """The curve of the first seed, up to a step."""
    row = document["scratch"][name]
    places = [i for i, step in enumerate(row["steps"]) if step <= steps]
    near(shared_curve(name, steps), np.array(row["losses"])[0][places])


@functools.cache
def fresh_losses() -> dict[str, np.ndarray]:
    study = Study(Sizes(), a_place())
    found = {}
    for name, config in sharing.variants(study.base, Sizes().shared).items():
        start = jax.jit(jax.vmap(lambda key, c=config: tiny.init_tiny(key, c)))(study.keys)
        found[name] = np.asarray(study.score(start, config))
    return found


def check_starts(document: dict[str, Any]) -> None:
    """Every model before its first step, all seeds."""
    for name, losses in fresh_losses().items():
        told = np.array(document["scratch"][name]["losses"])[:, 0]
        np.testing.assert_allclose(losses, told, **FORWARD)


# gates.json


@functools.cache
def gate_study() -> GateStudy:
    return GateStudy(GateSizes(seeds=1), a_place())


@functools.cache
def gate_base() -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    study = gate_study()
    every = fixed(np.ones((1, *study.shape), bool))
    weights, losses = study.fit(
        Weights(study.fresh([0]), every), Runs.of([0]), "base", rate=6e-3, stops=(600,)
    )
    return weights, losses, study.scores(weights)


def check_gate_base(document: dict[str, Any]) -> None:
    """The first seed of the models: its losses, and what its heads are worth.

    Its loss comes out again; what a single head is worth does so in order and size alone, since the
    rounding of 600 steps makes other heads of it: one was stored with 0.41 and comes out at 0.25.
    """
    _, losses, scores = gate_base()
    near(losses[0], document["base"]["losses"][0])
    for name in ("ablation", "gradient"):
        found, told = np.ravel(scores[name][0]), np.ravel(document["base"][name][0])
        assert spearmanr(found, told, axis=None).statistic > 0.8
        assert 0.7 < found.sum() / told.sum() < 1.4


@functools.cache
def gate_recovery() -> np.ndarray:
    """The first seed trained on: whole, and with 30% of the heads removed by ablation."""
    study, (weights, _, scores) = gate_study(), gate_base()
    removed = round(0.3 * study.shape[0] * study.shape[1])
    keep = np.concatenate(
        [np.ones((1, *study.shape), bool), gates.masks(scores["ablation"], np.array([removed]))]
    )
    models = gates.repeat(weights.model, 2)
    return study.tune(Weights(models, fixed(keep)), Runs.of([0, 0]), "recovery")[1]


def check_recovery(document: dict[str, Any]) -> None:
    found, told = gate_recovery(), document["recovery"]
    near(found[0], told["whole"][0])
    near(found[1], told["at once"][0][0])


@functools.cache
def gate_learned(price: float) -> tuple[np.ndarray, np.ndarray]:
    study, (weights, _, _) = gate_study(), gate_base()
    start = Weights(weights.model, HardConcrete.init(study.shape).log_alpha[None])
    tuned, losses = study.tune(start, Runs.of([0], price), "learned", learning=160)
    return losses[0], np.asarray(HardConcrete(tuned.log_alpha).deterministic())[0]


def check_learned(document: dict[str, Any]) -> None:
    """The losses of the first seed at one price, and how many heads stay.

    Which heads they are depends on the draws (the file's ``again`` has other ones) and on rounding.
    """
    told = document["learned"]
    place = told["prices"].index(0.1)
    losses, opened = gate_learned(0.1)
    near(losses, told["losses"][place][0], 2.5 * DRIFT)
    others = (np.array(document["again"]["gates"])[:, 0] > 0).sum((1, 2))
    stay = (np.array(told["gates"])[place, 0] > 0).sum()
    assert min(stay, *others) - 2 <= (opened > 0).sum() <= max(stay, *others) + 2


@functools.cache
def gate_sets(price: int) -> np.ndarray:
    """The first seed trained on without noise: the heads of the gates, and those of ablation."""
    study, (weights, _, _) = gate_study(), gate_base()
    sets = gates_quiet.sets_of(result("gates.json"), 1)
    keep = np.concatenate([sets["gates"][price], sets["ablation"][price]])
    models = gates.repeat(weights.model, 2)
    return study.tune(Weights(models, fixed(keep)), Runs.of([0, 0]), "quiet")[1]


def check_quiet(document: dict[str, Any]) -> None:
    """gates-quiet.json: both arms of the first seed at one price, and how far they are apart."""
    price = document["prices"].index(0.1)
    found = gate_sets(price)
    told = np.array([document[arm]["losses"][price][0] for arm in ("gates", "ablation")])
    near(found, told, 2.5 * DRIFT)
    near(found[0, -1] - found[1, -1], told[0, -1] - told[1, -1])
