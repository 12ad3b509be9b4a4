"""The experiments behind the chapter on gradients: their short forms, and what is stored."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import dropout, hand_gradients, shared
from mha_book.models import tiny
from mha_book.multihead.dropout import Dropout
from mha_book.storage import load_arrays, load_tree

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized


def limits(document, steps):
    """What holds at every step of a training by hand, in both precisions."""
    for dtype, gradient, losses in (("float32", 1e-5, None), ("float64", 1e-12, 1e-9)):
        record = document[dtype]
        assert [len(record["losses"][name]) for name in ("manual", "reference")] == [steps] * 2
        for name, allowed in (("manual", gradient), ("recompute", 3 * gradient)):
            found = record[f"gradient_{name}"]
            assert len(found["relative_by_step"]) == steps
            assert max(found["relative_by_step"]) < allowed
            # Neither is further from the gradient in float64 than autodiff itself is.
            rounding = record["gradient_to_float64"]
            assert max(rounding[f"{name}_by_step"]) < 3 * gradient
            if dtype == "float32":
                own = np.array(rounding[f"{name}_by_step"])
                assert np.median(own / rounding["reference_by_step"]) < 1.5
            assert max(found["key_bias_absolute_by_step"]) < 1e-6
        if losses is not None:
            assert record["largest_difference_of_losses"] < losses


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form_of_the_training_by_hand(tmp_path, capsys):
    path = hand_gradients.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    limits(document, hand_gradients.QUICK.steps)
    assert document["provenance"]["command"].endswith("--quick")
    assert "float64: losses at most" in capsys.readouterr().out


def test_the_stored_training_by_hand():
    document = json.loads((DATA / "gradients-training.json").read_text())
    sizes = hand_gradients.Sizes()
    assert document["config"] == sizes._asdict()
    limits(document, sizes.steps)
    for dtype in ("float32", "float64"):
        losses = document[dtype]["losses"]["manual"]
        assert losses[0] == pytest.approx(math.log(106), rel=0.05)
        assert np.mean(losses[-10:]) < 2.7


def stored(document, settings, regimes, sizes):
    assert list(document["settings"]) == list(settings)
    for regime, setting in ((r, s) for r in regimes for s in settings):
        found = document[regime][setting]
        assert len(found["validation"]) == len(found["training"]) == sizes.seeds
        assert np.shape(found["curve_validation"]) == (sizes.seeds, len(found["curve_steps"]))
        assert np.isfinite(found["curve_validation"]).all()
    heads = sizes.num_layers * sizes.num_heads
    for setting in settings:
        assert np.shape(document["removal"][setting]) == (sizes.seeds, 2**heads)
    for place in ("weights", "heads", "output"):
        for name in ("bias", "variance", "variance_by_formula"):
            assert np.shape(document["noise"][place][name]) == (sizes.seeds, sizes.num_layers)


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form_of_the_dropout_experiment(tmp_path):
    path = dropout.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    stored(document, dropout.KEPT, ["whole text"], dropout.QUICK)
    # The weights that are stored give the losses that are stored.
    arrays, metadata = load_arrays(path.with_suffix(".safetensors"))
    config = tiny.TinyConfig(**metadata["config"])
    assert dataclasses.asdict(config) == document["model"]
    like = jax.eval_shape(lambda: tiny.init_tiny(jax.random.key(0), config))
    text = shared.load_text()
    assert metadata["characters"] == text.characters
    windows = dropout.evenly_spaced_windows(
        text.validation, dropout.QUICK.removal_windows, dropout.QUICK.context + 1
    )
    score = jax.jit(tiny.loss, static_argnames="config")
    for setting in dropout.KEPT:
        params = load_tree(arrays, like, setting)
        for gate, number in ((1.0, 0), (0.0, -1)):
            gates = jnp.full((config.num_layers, config.num_heads), gate)
            loss = score(params, windows, config=config, gates=gates)
            assert loss == pytest.approx(document["removal"][setting][0][number], rel=1e-4)
    checkpoint = tmp_path / "dropout-whole-text-none.safetensors"
    assert load_arrays(checkpoint)[0]["state.step"].tolist() == [dropout.QUICK.steps] * 2


def test_the_stored_dropout_experiment():
    document = json.loads((DATA / "gradients-dropout.json").read_text())
    stored(document, dropout.SETTINGS, ["whole text", "scarce text"], dropout.Sizes())
    assert (DATA / "gradients-dropout.safetensors").stat().st_size < 2e6
    for place, found in document["noise"].items():
        if place == "loss":
            continue
        variance = np.array(found["variance"])
        np.testing.assert_allclose(variance, found["variance_by_formula"], rtol=0.05)
        # No bias: the mean over draws is off by what the number of draws explains.
        assert np.all(np.array(found["bias"]) < 1.5 * np.array(found["bias_of_chance"]))


def test_every_set_of_heads_once():
    """Set number s lacks the heads whose bits are 1, counted layer by layer."""
    config = tiny.TinyConfig(7, 5, 8, num_layers=2, num_heads=2)
    start = jax.jit(jax.vmap(lambda key: tiny.init_tiny(key, config)))
    params = start(jax.random.split(jax.random.key(0)))
    token_ids = jnp.array([[1, 2, 3, 4, 5, 6]])
    losses, removed = dropout.removals(params, token_ids, config)
    assert losses.shape == (2, 16)
    assert len({tuple(row) for row in removed.tolist()}) == 16
    second = jax.tree.map(lambda leaf: leaf[1], params)
    gates = jnp.array([[0.0, 1.0], [1.0, 0.0]])  # heads 0 and 3: set 1 + 8
    want = jax.jit(tiny.loss, static_argnames="config")(
        second, token_ids, config=config, gates=gates
    )
    assert losses[1, 9] == pytest.approx(float(want), rel=1e-5)


def test_a_result_is_json_that_can_be_read(tmp_path):
    path = tmp_path / "result.json"
    result = {"a": {"x": np.float32(1 / 3), "y": [1, jnp.arange(2)]}, "b": None}
    shared.store(path, "python -m example", result, digits=3)
    document = json.loads(path.read_text())
    assert document["provenance"]["command"] == "python -m example"
    assert (document["a"], document["b"]) == ({"x": 0.333, "y": [1, [0, 1]]}, None)
    assert len(path.read_text().splitlines()) > 10
    with pytest.raises(ValueError, match="JSON compliant"):
        shared.store(path, "python -m example", {"loss": float("nan")})


def test_the_formula_of_the_variance_at_each_place():
    """Against all that the draws can be: one pair, one head, one feature at a time."""
    config = tiny.TinyConfig(7, 4, 6, num_layers=1, num_heads=2)
    params = jax.jit(tiny.init_tiny, static_argnums=1)(jax.random.key(0), config)
    token_ids = jnp.array([[1, 5, 2, 6]])
    measured = jax.jit(dropout.noise, static_argnums=(3, 4))
    found = measured(params, token_ids, jax.random.key(1), config, 4000)
    for place in ("weights", "heads", "output"):
        ratio = found[place]["variance"] / found[place]["variance_by_formula"]
        np.testing.assert_allclose(ratio, 1.0, rtol=0.1)
    assert Dropout(heads=dropout.RATE) == dropout.SETTINGS["heads"]
