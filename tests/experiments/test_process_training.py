"""Training over several processes: against a loop without any mesh, killed, and gone on with."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from experiments import process_training as run
from experiments.process_training import CONFIG, TOLERANCE, load_checkpoint, train
from mha_book.models import tiny
from mha_book.sharding.mesh import MeshSizes
from mha_book.storage import load_arrays, save_arrays

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Any:
    """The processes that are started compile without optimization: half of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
        yield


@pytest.fixture(scope="module")
def alone() -> dict[int, tuple[Any, list[float]]]:
    """Weights after each step and losses before, by the plain model on one device."""

    @jax.jit
    def step(params: Any, opt_state: Any, tokens: Any) -> Any:
        value, slope = jax.value_and_grad(tiny.loss)(params, tokens, config=CONFIG)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = run.OPTIMIZER.update(slope, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, value

    params = jax.jit(tiny.init_tiny, static_argnums=1)(jax.random.key(run.SEED), CONFIG)
    opt_state, losses, found = run.OPTIMIZER.init(params), [], {}
    for number in range(12):
        params, opt_state, loss = step(params, opt_state, run.batch(number))
        losses.append(float(loss))
        found[number + 1] = params, list(losses)
    return found


def close(path: Path, params: Any) -> None:
    for got, want in zip(
        jax.tree.leaves(load_checkpoint(path).params), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def launch(capfd: Any, *arguments: Any) -> tuple[int, list[str]]:
    code = run.main([str(each) for each in arguments])
    return code, capfd.readouterr().out.splitlines()


def test_one_process_and_its_checkpoint(tmp_path: Path, alone: Any) -> None:
    path = tmp_path / "run.safetensors"
    options: dict[str, Any] = {"checkpoint": path, "every": 2}
    whole, losses = train(5, MeshSizes(), checkpoint=tmp_path / "whole.safetensors")
    np.testing.assert_allclose(losses, alone[5][1], atol=TOLERANCE)
    close(tmp_path / "whole.safetensors", alone[5][0])

    def fails(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(5, MeshSizes(), before_step=fails, **options)
    assert int(load_checkpoint(path).step) == 2
    state, later = train(5, MeshSizes(), **options)
    assert later == losses[2:]
    jax.tree.map(np.testing.assert_array_equal, state, whole)  # the same bits
    with pytest.raises(ValueError, match="steps: expected at least the 5 steps made already"):
        train(4, MeshSizes(), **options)
    arrays, metadata = load_arrays(path)
    save_arrays(path, arrays, {"run": {**metadata["run"], "seed": 1}})
    with pytest.raises(ValueError, match="expected a checkpoint of"):
        train(6, MeshSizes(), **options)


@pytest.mark.slow
def test_two_begin_four_go_on_and_one_ends(tmp_path: Path, alone: Any, capfd: Any) -> None:
    path, begun = tmp_path / "run.safetensors", 0
    for processes, over, steps in ((2, "positions", 4), (4, "both", 8), (1, "sequences", 12)):
        given = ("--processes", processes, "--over", over, "--steps", steps, "--checkpoint", path)
        code, lines = launch(capfd, *given)
        assert code == 0, lines
        assert sum(f"steps {begun} to {steps}, loss" in line for line in lines) == processes
        close(path, alone[steps][0])
        begun = steps
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_one_dies_and_the_run_goes_on_to_the_same_bits(tmp_path: Path, capfd: Any) -> None:
    whole, path = tmp_path / "whole.safetensors", tmp_path / "run.safetensors"
    given = ("--processes", 2, "--over", "positions", "--steps", 10, "--checkpoint")
    assert launch(capfd, *given, whole)[0] == 0
    code, lines = launch(capfd, *given, path, "--fail", 1)
    assert code == 1
    assert "process 1: dies here" in lines
    assert lines[-1].startswith("process 1 died (exit code 9): the others were ended ")
    assert int(load_checkpoint(path).step) == 5
    assert launch(capfd, *given, path)[0] == 0
    found, undisturbed = load_arrays(path)[0], load_arrays(whole)[0]
    assert {n: x.tobytes() for n, x in found.items()} == {
        n: x.tobytes() for n, x in undisturbed.items()
    }
