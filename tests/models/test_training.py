"""Training over several processes: against a loop without any mesh, killed, and gone on with."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from mha_book.models import tiny, training
from mha_book.models.training import CONFIG, TOLERANCE, load_checkpoint, train
from mha_book.sharding.mesh import MeshSizes
from mha_book.sharding.processes import GRACE
from mha_book.storage import load_arrays, save_arrays

STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Any:
    """The processes that are started compile without optimisation: half of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("PYTHONPATH", str(Path(training.__file__).parents[2]))
        yield


@pytest.fixture(scope="module")
def alone() -> dict[int, tuple[Any, list[float]]]:
    """Weights after each step and losses before, by the plain model on one device."""
    optimizer = optax.sgd(training.RATE, momentum=0.9)

    @jax.jit
    def step(params: Any, opt_state: Any, tokens: Any) -> Any:
        value, slope = jax.value_and_grad(tiny.loss)(params, tokens, config=CONFIG)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(slope, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, value

    params = jax.jit(tiny.init_tiny, static_argnums=1)(jax.random.key(training.SEED), CONFIG)
    opt_state, losses, found = optimizer.init(params), [], {}
    for number in range(STEPS):
        params, opt_state, loss = step(params, opt_state, training.batch(number))
        losses.append(float(loss))
        found[number + 1] = params, list(losses)
    return found


def close(path: Path, params: Any) -> None:
    jax.tree.map(
        lambda mine, theirs: np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE),
        load_checkpoint(path).params,
        params,
    )


def launch(capfd: Any, processes: int, **options: Any) -> tuple[int, list[str]]:
    code = training.launch(processes, **options)
    return code, capfd.readouterr().out.splitlines()


def test_one_process_and_its_checkpoint(tmp_path: Path, alone: Any) -> None:
    path = tmp_path / "run.safetensors"
    options = {"checkpoint": path, "every": 2}
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
    with pytest.raises(ValueError, match="expected a checkpoint of the run"):
        train(6, MeshSizes(), **options)


def test_two_processes_divide_the_positions(tmp_path: Path, alone: Any, capfd: Any) -> None:
    path = tmp_path / "run.safetensors"
    code, lines = launch(capfd, 2, over="positions", steps=3, checkpoint=path)
    assert code == 0, lines
    first, last = (f"{alone[3][1][n]:.3f}" for n in (0, -1))
    said = [line for line in lines if line.startswith("process ")]
    places = ("0-7 24-31", "8-15 16-23")
    assert said[::2] == [f"process {n}: sequences 0-7, positions {places[n]}" for n in (0, 1)]
    for line in said[1::2]:
        assert line.endswith(f"steps 0 to 3, loss {first} to {last}")
    assert lines[-1].startswith("2 processes trained one model, after ")
    close(path, alone[3][0])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_two_begin_four_go_on_and_one_ends(tmp_path: Path, alone: Any, capfd: Any) -> None:
    path = tmp_path / "run.safetensors"
    legs = ((2, "sequences", 4), (4, "both", 8), (1, "sequences", STEPS))
    begun = 0
    for processes, over, steps in legs:
        code, lines = launch(capfd, processes, over=over, steps=steps, checkpoint=path)
        assert code == 0, lines
        assert sum(f"steps {begun} to {steps}, loss" in line for line in lines) == processes
        state = load_checkpoint(path)
        assert int(state.step) == steps
        close(path, alone[steps][0])
        begun = steps
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: Any) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("undisturbed") / "run.safetensors"
    assert training.launch(2, over="positions", steps=10, checkpoint=path) == 0
    return load_arrays(path)[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_one_dies_and_the_run_goes_on(
    number: int, tmp_path: Path, undisturbed: dict[str, np.ndarray], capfd: Any
) -> None:
    path = tmp_path / "run.safetensors"
    options: dict[str, Any] = {"over": "positions", "steps": 10, "checkpoint": path}
    code, lines = launch(capfd, 2, fail=number, **options)
    assert code == 1
    assert f"process {number}: dies here" in lines
    assert lines[-1].startswith(f"process {number} died (exit code 9): the others were ended ")
    assert int(lines[-1].split(" s later")[0].split()[-1]) <= GRACE + 1
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # whole, and nothing beside it
    assert int(load_checkpoint(path).step) == 5
    code, lines = launch(capfd, 2, **options)
    assert code == 0, lines
    assert sum("steps 5 to 10, loss" in line for line in lines) == 2
    found = load_arrays(path)[0]
    assert found.keys() == undisturbed.keys()
    for name, array in found.items():
        assert array.tobytes() == undisturbed[name].tobytes(), name


def test_wrong_numbers_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="processes: expected a positive integer; got 0"):
        training.launch(0)
    with pytest.raises(ValueError, match=r"over: expected one of sequences, .*; got 'heads'"):
        training.launch(2, over="heads")
    with pytest.raises(ValueError, match="processes: expected a divisor of the 8 sequences; got 3"):
        training.launch(3, over="sequences")
    with pytest.raises(ValueError, match="length: expected a multiple of 6, two stretches for"):
        training.launch(3, over="positions")
    with pytest.raises(ValueError, match="processes: expected an even number"):
        training.launch(3, over="both")
    with pytest.raises(ValueError, match="steps: expected a positive integer; got 0"):
        training.launch(2, steps=0)
    with pytest.raises(ValueError, match="fail: expected the number of a process, 0 to 1; got 2"):
        training.launch(2, fail=2)
