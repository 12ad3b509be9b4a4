"""The study of learned gates and of recovery: its short form, its parts, and what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import gates, gates_smollm2
from experiments.gates_training import FIXED, Runs, Sizes, Study, Weights, fixed
from mha_book.pruning.hard_concrete import HardConcrete

STORED = Path(__file__).parents[2] / "book" / "data" / "gates.json"
ORDERS = [*gates.ORDERS, "scratch"]
pytestmark = pytest.mark.unoptimized


def complete(document, sizes):
    """Every training is there, for every seed, and begins where it should."""
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    shape = (sizes.num_layers, sizes.num_heads)
    total, stops = shape[0] * shape[1], 1 + len(sizes.stops)
    base = np.array(document["base"]["losses"])[:, -1]
    assert base.shape == (sizes.seeds,)

    recovery = document["recovery"]
    assert recovery["steps"] == [0, *sizes.stops]
    assert recovery["removed"] == [round(fraction * total) for fraction in sizes.fractions]
    np.testing.assert_allclose(np.array(recovery["whole"])[:, 0], base, rtol=1e-5)
    for way in ("at once", "random", "in rounds"):
        losses = np.array(recovery[way])
        assert losses.shape == (len(sizes.fractions), sizes.seeds, stops)
        assert np.isfinite(losses).all()

    learned, compared = document["learned"], document["compared"]
    runs = (len(sizes.prices), sizes.seeds)
    opened = np.array(learned["gates"])
    assert opened.shape == (*runs, *shape)
    assert ((opened >= 0) & (opened <= 1)).all()
    assert np.shape(learned["losses"]) == (*runs, stops)
    left = (opened > 0).sum((2, 3))
    assert list(compared) == ORDERS
    for order in gates.ORDERS:
        assert np.shape(compared[order]["losses"]) == (runs[0] - 1, sizes.seeds, stops)
        np.testing.assert_array_equal(np.sum(compared[order]["left"], 2), left[1:])
    assert np.shape(compared["scratch"]["losses"]) == (runs[0] // 2, sizes.seeds, 2)
    assert np.shape(compared["scratch"]["whole"]) == (sizes.seeds, 2)
    again = document["again"]
    assert np.shape(again["gates"]) == (sizes.noises, sizes.seeds, *shape)
    for found in (recovery, learned):
        assert found["difference of the smaller model"] < 1e-4
    return base, left


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form(tmp_path, capsys):
    path = gates.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    complete(document, gates.QUICK)
    assert document["provenance"]["command"].endswith("--quick")
    assert "SmolLM2, removed heads: " in capsys.readouterr().out
    # What has a price goes; what has none does not within three steps.
    left = (np.array(document["learned"]["gates"]) > 0).sum((2, 3))
    assert (left[0] == 4).all()
    assert (left[1] < 4).all()
    # What was done is not done again.
    model = document["smollm2"]
    assert gates_smollm2.run(gates_smollm2.QUICK, tmp_path)["seconds"] == pytest.approx(
        model["seconds"], rel=1e-5
    )


def test_fixed_gates_do_not_move_and_learned_ones_do():
    keep = np.array([[True, False], [False, True]])
    keys = jax.random.split(jax.random.key(0), 1000)
    draws = jax.jit(jax.vmap(lambda key: HardConcrete(fixed(keep)).sample(key)))(keys)
    assert (np.asarray(draws) == keep).all()
    assert (np.asarray(HardConcrete(fixed(keep)).deterministic()) == keep).all()
    slope = jax.grad(lambda x: HardConcrete(x).sample(keys[0]).sum())(fixed(keep))
    assert not np.asarray(slope).any()
    assert float(jax.grad(lambda x: HardConcrete(x).expected_l0())(jnp.array(1.0))) > 0.05
    assert float(jnp.abs(fixed(keep)).min()) == FIXED


def test_runs_of_a_list_of_seeds():
    runs = Runs.of([0, 1, 2], prices=0.5)
    assert runs.prices.tolist() == [0.5] * 3
    assert runs.noises.tolist() == [0] * 3


def test_masks_lose_the_least_important():
    importance = np.array([[[0.3, 0.1], [0.2, 0.4]], [[0.0, 1.0], [2.0, 3.0]]])
    keep = gates.masks(importance, np.array([1, 2]))
    assert keep.astype(int).tolist() == [[[1, 0], [1, 1]], [[0, 0], [1, 1]]]


def test_the_heads_that_smollm2_keeps():
    keep = gates_smollm2.kept_heads(30, 0.3)
    assert keep.shape == (30, 9)
    assert (~keep).sum() == 81


@pytest.mark.usefixtures("world")
def test_two_draws_differ_and_two_batches_do_not(tmp_path):
    sizes = Sizes(2, 2, 2, 2, 2, 8, 8, 1, 2, windows=2, stops=(2,), gate_rate=1.0)
    study = Study(sizes, tmp_path)
    models = gates.repeat(study.fresh([0]), 3)
    weights = Weights(models, jnp.zeros((3, 1, 2)))
    runs = Runs.of([0, 0, 0], noises=[1, 1, 2])
    after, losses = study.tune(weights, runs, "draws", learning=2)
    assert losses.shape == (3, 2)
    one, same, other = np.asarray(after.log_alpha)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_the_stored_study():
    document = json.loads(STORED.read_text())
    assert STORED.stat().st_size < 1e6
    sizes = Sizes()
    base, left = complete(document, sizes)
    assert base.max() < 2.0  # 4.66 where nothing is known
    assert (np.diff(left.mean(1)) < 0).all()  # the dearer, the fewer
    model = document["smollm2"]
    assert model["removed"] == 81
    for name in ("whole", "removed heads"):
        assert len(model[name]["before"]) == len(model[name]["after"]) == 24
