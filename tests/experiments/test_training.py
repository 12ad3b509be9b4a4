"""Training: killed and resumed to the same bits; files that are whole or not there."""

import importlib
import io
import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tqdm

from experiments.shared import provenance
from experiments.training import init_state, make_train_step, train
from mha_book.storage import (
    PROVENANCE,
    load_arrays,
    load_tree,
    save_arrays,
    tree_arrays,
    write_atomic,
)
from tests.experiments import training_run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.unoptimized


def process(checkpoint: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "tests.experiments.training_run", str(checkpoint), *arguments]
    run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert run.returncode in (0, -signal.SIGKILL), run.stderr
    return run.returncode


class Killed(BaseException):
    """No ``Exception``: nothing between the kill and the test may catch it."""


def killed_here(checkpoint: Path, *arguments: str) -> int:
    """What :func:`process` does, in this process."""

    def die() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "die", die)
        try:
            training_run.main([str(checkpoint), *arguments], patch.setattr)
        except Killed:
            return -signal.SIGKILL
    return 0


def content(checkpoint: Path) -> dict[str, np.ndarray]:
    return load_arrays(checkpoint)[0]


def assert_same_bits(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].tobytes() == array.tobytes(), name


# An exception stops the same writes at the same places as SIGKILL does in a process of its own.
@pytest.mark.parametrize("killed", [killed_here, pytest.param(process, marks=pytest.mark.slow)])
def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path, killed):
    """Killed at a random step, then half way through writing a checkpoint, then to the end."""
    checkpoint, whole = tmp_path / "run.safetensors", tmp_path / "whole.safetensors"
    step = 1 + secrets.randbelow(3 * training_run.EVERY)
    print(f"killed at step {step}")
    assert killed(checkpoint, "--kill-at", str(step)) == -signal.SIGKILL
    kept = (step - 1) // training_run.EVERY * training_run.EVERY  # where it died, and not after
    assert checkpoint.exists() == (kept > 0)
    assert not [*tmp_path.glob("*.partial")]

    assert killed(checkpoint, "--kill-in-write", "2") == -signal.SIGKILL
    partials = [*tmp_path.glob("run.safetensors.*.partial")]
    assert len(partials) == (killed is process)  # an exception cleans up, a kill cannot
    for partial in partials:
        with pytest.raises(ValueError, match="expected a whole safetensors file"):
            load_arrays(partial)
    reached = kept + training_run.EVERY  # its first checkpoint is whole, the second one is not
    assert content(checkpoint)["state.step"].tolist() == [reached] * training_run.SEEDS

    assert killed(checkpoint) == 0
    assert [*tmp_path.glob("*.partial")] == partials
    assert killed(whole) == 0
    got = content(checkpoint)
    assert_same_bits(got, content(whole))
    assert "state.params.layers[0].attention.w_o" in got
    assert any(name.startswith("state.opt_state") and ".mu" in name for name in got)
    assert got["state.step"].tolist() == [training_run.STEPS] * training_run.SEEDS
    assert got["metrics/loss"].shape == (training_run.STEPS, training_run.SEEDS)
    assert got["evaluations/step"].tolist() == [0, 10, 20, 30, 40]


# The rest on the smallest model there is: a vector pulled towards noise.


def descent(num_steps, checkpoint=None, *, seeds=None, seed=3, optimizer=None, **options):
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    step = make_train_step(
        lambda params, batch, key: (
            jnp.mean((params["x"] - batch) ** 2) + 0.0 * jax.random.normal(key)
        ),
        lambda data, key: data + jax.random.normal(key, (5,)),
        optimizer,
    )
    params, key = {"x": jnp.arange(5, dtype=jnp.float32)}, jax.random.key(seed)
    if seeds is None:
        state = init_state(params, optimizer, key)
    else:
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        state = jax.vmap(lambda key: init_state(params, optimizer, key))(keys)
        step = jax.vmap(step, in_axes=(0, None))
    options = {"data": jnp.ones(5), "config": {"rate": 0.1}, **options}
    return train(step, state, num_steps, checkpoint=checkpoint, **options)


def measure(params, data):
    return {"distance": jnp.sum(jnp.abs(params["x"] - data))}


def test_it_descends():
    result = descent(300)
    assert np.abs(np.asarray(result.state.params["x"]) - 1).max() < 0.5
    assert result.metrics["loss"].shape == (300,)
    assert result.metrics["loss"][-50:].mean() < result.metrics["loss"][:10].mean() / 2
    assert result.evaluations == {}


def test_seeds_under_vmap_are_the_runs_one_by_one():
    several = descent(20, seeds=(3, 5))
    alone = descent(20)
    assert several.metrics["loss"].shape == (20, 2)
    np.testing.assert_allclose(several.metrics["loss"][:, 0], alone.metrics["loss"], rtol=1e-5)
    np.testing.assert_allclose(several.state.params["x"][0], alone.state.params["x"], rtol=1e-5)
    assert not np.allclose(several.metrics["loss"][:, 1], alone.metrics["loss"])


def test_evaluations_before_in_between_and_after(tmp_path):
    whole = descent(25, evaluate=measure, evaluate_every=10)
    assert whole.evaluations["step"].tolist() == [0, 10, 20, 25]
    path = tmp_path / "run.safetensors"
    for steps in (10, 13, 25):
        result = descent(
            steps, path, evaluate=measure, evaluate_every=10 if steps != 13 else 50, every=4
        )
    assert result.evaluations["step"].tolist() == [0, 10, 13, 20, 25]
    np.testing.assert_array_equal(result.metrics["loss"], whole.metrics["loss"])
    again = descent(25, path, evaluate=measure, evaluate_every=10)  # nothing is left to do
    for name, array in result.evaluations.items():
        np.testing.assert_array_equal(again.evaluations[name], array)
    np.testing.assert_array_equal(again.state.params["x"], result.state.params["x"])


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    descent(4, path, config={"rate": 0.1, "places": (1, 2)})
    descent(6, path, config={"rate": 0.1, "places": (1, 2)})
    with pytest.raises(ValueError, match=r"expected a checkpoint of the run \{'rate': 0.2"):
        descent(8, path, config={"rate": 0.2, "places": (1, 2)})
    with pytest.raises(ValueError, match="num_steps: expected at least the 6 steps"):
        descent(5, path, config={"rate": 0.1, "places": (1, 2)})
    with pytest.raises(ValueError, match=r"state.*expected shape"):
        descent(8, path, seeds=(1, 2), config={"rate": 0.1, "places": (1, 2)})


def test_another_seed_or_optimizer_is_another_run(tmp_path):
    path = str(tmp_path / "run.safetensors")  # a string serves as a path does
    descent(4, path, seed=3)
    with pytest.raises(ValueError, match=r"rng_key: expected the key of this run, \[0, 5\]; got"):
        descent(6, path, seed=5)
    with pytest.raises(ValueError, match=r"rng_key: expected the key of this run"):
        descent(4, path, seed=5)  # nothing is left to do, and still it is not this run
    for other in (optax.sgd(0.1), optax.chain(optax.clip(1.0), optax.adam(0.1))):
        with pytest.raises(ValueError, match=r"state"):
            descent(6, path, optimizer=other)
    assert descent(6, path, seed=3).state.step == 6
    rated = tmp_path / "rated.safetensors"
    descent(4, rated, optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))
    with pytest.raises(ValueError, match=r"opt_state: expected the optimizer that the run began"):
        descent(6, rated, optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=0.2))
    descent(6, rated, optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))


def test_a_rate_that_no_state_shows_is_told_by_the_config_alone(tmp_path):
    path = tmp_path / "run.safetensors"
    for nothing in (None, {}):
        with pytest.raises(
            ValueError, match=r"config: expected what the run is, its learning rate"
        ):
            descent(4, path, config=nothing)
    assert not path.exists()
    descent(4, path, config={"rate": 0.1})
    with pytest.raises(ValueError, match=r"expected a checkpoint of the run \{'rate': 0.2"):
        descent(6, path, config={"rate": 0.2}, optimizer=optax.adam(0.2))
    descent(4, config=None)  # where nothing is kept, nothing has to be told apart


@pytest.mark.parametrize("name", ["every", "evaluate_every"])
def test_intervals_are_positive(name):
    with pytest.raises(ValueError, match=f"{name}: expected a positive number"):
        descent(1, **{name: 0})


def test_every_damaged_file_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    descent(3, path)
    whole = path.read_bytes()
    assert len(load_arrays(path)[0]) > 3
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="expected a whole safetensors file"):
            descent(5, path)
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match="expected content with its own digest"):
        descent(5, path)
    changed = whole.replace(b'\\"python\\": \\"3', b'\\"python\\": \\"9')
    assert changed != whole
    path.write_bytes(changed)
    with pytest.raises(ValueError, match="expected content with its own digest"):
        load_arrays(path)


def test_arrays_and_metadata_there_and_back(tmp_path):
    tree = {
        "wide": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "half": jnp.ones((2,), jnp.float16),
        "empty": jnp.zeros((0, 3)),
        "scalar": jnp.asarray(3, jnp.int32),
        "keys": jax.random.split(jax.random.key(0), 2),
        "nothing": None,
    }
    path = tmp_path / "deep" / "file.safetensors"
    save_arrays(path, tree_arrays(tree, "t"), {"config": {"a": [1, 2.5, None]}, "note": "ü"})
    arrays, metadata = load_arrays(path)
    assert metadata == {"config": {"a": [1, 2.5, None]}, "note": "ü"}
    np.testing.assert_array_equal(arrays["t['wide']"], tree["wide"])
    with jax.enable_x64(True):
        back = load_tree(arrays, tree, "t")
        assert jax.tree.structure(back) == jax.tree.structure(tree)
        assert back["half"].dtype == jnp.float16
        assert back["wide"].dtype == jnp.float64
        np.testing.assert_array_equal(
            jax.random.key_data(back["keys"]), jax.random.key_data(tree["keys"])
        )
    with pytest.raises(ValueError, match="a: expected float16, 32 or 64"):
        save_arrays(path, {"a": np.asarray(jnp.ones(2, jnp.bfloat16))})
    with pytest.raises(ValueError, match=r"x\['scalar'\]: expected an array of this name"):
        load_tree(arrays, {"scalar": jnp.zeros(3)}, "x")
    with pytest.raises(ValueError, match=r"expected shape \(3,\) and dtype float32; got \(\) and"):
        load_tree(arrays, {"scalar": jnp.zeros(3)}, "t")


def test_write_atomic_leaves_the_old_file_when_it_cannot_finish(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(handle):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_provenance_says_versions_and_nothing_of_the_machine_s_owner():
    record = json.loads(json.dumps(provenance()))
    assert record["packages"]["jax"] == jax.__version__
    assert set(record) == {*PROVENANCE, "machine", "device", "cores"} - {"payload_sha256"}


def test_progress_shows_on_a_terminal_alone(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for screen, shows in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", screen)
        descent(3, name="a small run")
        assert ("a small run: 100%" in screen.getvalue()) == shows
    assert tqdm.tqdm.monitor is None or tqdm.tqdm.monitor.daemon


@pytest.mark.parametrize("module", ["optax", "safetensors", "tqdm"])
def test_a_missing_extra_says_what_to_install(module, monkeypatch, tmp_path):
    def absent(name):
        if name.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return __import__(name, fromlist=["_"])

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "mha-book\[training\]"'):
        descent(1, tmp_path / "run.safetensors")
