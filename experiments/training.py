"""Training small models: a loop whose outcome is kept, so that a killed experiment goes on.

Everything random in a step, the batch included, comes from the key of the run and the number of
the step. So the state of a run is one tree, and no reader of data has a place to remember. With
``jax.vmap`` over states one loop trains one model for each key.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from experiments.shared import provenance
from mha_book._checks import check
from mha_book.storage import import_extra, load_arrays, load_tree, save_arrays, tree_arrays


class TrainState(NamedTuple):
    step: Array  # how many steps were made, int32
    params: Any  # the parameters
    opt_state: Any  # the state of the optimizer
    rng_key: Array  # the key of the run; it does not change


class TrainResult(NamedTuple):
    """What :func:`train` returns; the first axis of arrays counts steps or evaluations."""

    state: TrainState  # after the last step
    metrics: dict[str, np.ndarray]  # what each step reported
    evaluations: dict[str, np.ndarray]  # what each evaluation reported, and its ``"step"``


def init_state(params: Any, optimizer: Any, rng_key: Key[Array, ""]) -> TrainState:
    """Return the state before the first step; ``jax.vmap`` over both gives one for each key."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), rng_key)


def apply_gradients(optimizer: Any, gradient: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
    optax = import_extra("optax", "training")
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies by its count of steps
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state


def make_train_step(
    loss: Callable[..., Array], batch: Callable[..., Any], optimizer: Any
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:

    def step(state: TrainState, data: Any) -> tuple[TrainState, dict[str, Array]]:
        key = jax.random.fold_in(state.rng_key, state.step)
        batch_key, loss_key = jax.random.split(key)
        examples = batch(data, batch_key)
        value, gradient = jax.value_and_grad(loss)(state.params, examples, loss_key)
        params, opt_state = apply_gradients(optimizer, gradient, state.opt_state, state.params)
        return TrainState(state.step + 1, params, opt_state, state.rng_key), {"loss": value}

    return step


def train(
    step: Callable[..., tuple[TrainState, dict[str, Array]]],
    state: TrainState,
    num_steps: int,
    *,
    data: Any = None,
    checkpoint: Path | str | None = None,
    evaluate: Callable[..., dict[str, Array]] | None = None,
    evaluate_every: int = 100,
    config: Mapping[str, Any] | None = None,
    name: str = "training",
) -> TrainResult:
    """Make steps until ``num_steps`` are made; progress shows on a terminal.

    With ``checkpoint`` what a training came to is kept there, and returned when the same one is
    asked for again: ``config`` says what it is, and the state it begins with has to be the same.
    """
    check(evaluate_every > 0, "evaluate_every", "a positive number of steps", evaluate_every)
    what = "what the run is, its learning rate too, where a checkpoint is kept"
    check(checkpoint is None or bool(config), "config", what, config)
    run = json.loads(json.dumps({"steps": num_steps, **(config or {})}))
    began = {"config": run, "start": _digest(state)}
    if checkpoint is not None and Path(checkpoint).exists():
        return _kept(Path(checkpoint), state, began)
    metrics: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    start = int(np.ravel(state.step)[0])
    check(start <= num_steps, "num_steps", f"at least the {start} steps made already", num_steps)
    compiled, measure = jax.jit(step), None if evaluate is None else jax.jit(evaluate)
    options = {"total": num_steps, "initial": start, "desc": name, "unit": "step"}
    tqdm = import_extra("tqdm", "training").tqdm
    with tqdm(**options, disable=not sys.stderr.isatty()) as bar:
        for done in range(start, num_steps + 1):
            is_last = done == num_steps
            if measure is not None and (is_last or done % evaluate_every == 0):
                step_number = np.asarray(done, np.int32)
                evaluations.append({"step": step_number, **measure(state.params, data)})
            if not is_last:
                state, reported = compiled(state, data)
                metrics.append(reported)
                bar.update()
    found = TrainResult(state, _stack(metrics), _stack(evaluations))
    if checkpoint is not None:
        arrays = tree_arrays(state, "state")
        for kind in ("metrics", "evaluations"):
            rows = getattr(found, kind).items()
            arrays |= {f"{kind}/{name}": array for name, array in rows}
        save_arrays(Path(checkpoint), arrays, {**began, "provenance": provenance()})
    return found


def train_in_stages(step, state, stops, place, **options) -> tuple[Any, Any]:
    """Train to each stop of a schedule, and evaluate before the first step and at each of them.

    The checkpoints stand beside ``place``.
    """
    found = []
    for stop in stops:
        path = place.with_name(f"{place.name}-{stop}.safetensors")
        trained = train(step, state, stop, checkpoint=path, evaluate_every=stops[-1], **options)
        state = trained.state
        found.append(trained.evaluations)
    return state.params, {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def _digest(state: TrainState) -> str:
    """Return the sha256 of a state: parameters, key, and the optimizer with its rates."""
    digest = hashlib.sha256()
    for name, array in tree_arrays(state).items():
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _kept(path: Path, like: TrainState, began: dict[str, Any]) -> TrainResult:
    """Read what a training came to, if it is the one that began so."""
    arrays, metadata = load_arrays(path)
    for name, what in (("config", "the run"), ("start", "a run that begins with the state")):
        known = metadata.get(name)
        check(known == began[name], f"{path}", f"a checkpoint of {what} {began[name]}", known)
    metrics, evaluations = (
        {n.removeprefix(kind): array for n, array in arrays.items() if n.startswith(kind)}
        for kind in ("metrics/", "evaluations/")
    )
    return TrainResult(load_tree(arrays, like, "state"), metrics, evaluations)


def _stack(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in (rows or [{}])[0]}
