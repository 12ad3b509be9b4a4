"""Training small models: a loop that can be killed at any step and goes on to the same bits.

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
    every: int = 100,
    evaluate: Callable[..., dict[str, Array]] | None = None,
    evaluate_every: int = 100,
    config: Mapping[str, Any] | None = None,
    name: str = "training",
) -> TrainResult:
    """Make steps until ``num_steps`` are made, from where a checkpoint says, or from ``state``.

    On the same machine, cores and versions, a run that was killed and started again ends with the
    same bits as one that was not. Progress shows on a terminal.
    """
    for count, argument in ((every, "every"), (evaluate_every, "evaluate_every")):
        check(count > 0, argument, "a positive number of steps", count)
    config = dict(config or {})
    what = "what the run is, its learning rate too, where a checkpoint is kept"
    check(checkpoint is None or bool(config), "config", what, config)
    checkpoint = None if checkpoint is None else Path(checkpoint)
    metrics: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    optimizer = _fingerprint(state.opt_state)
    if checkpoint is not None and checkpoint.exists():
        state, metrics, evaluations = _resume(checkpoint, state, config, optimizer)
    start = int(np.ravel(state.step)[0])
    check(start <= num_steps, "num_steps", f"at least the {start} steps made already", num_steps)
    compiled, measure = jax.jit(step), None if evaluate is None else jax.jit(evaluate)
    options = {"total": num_steps, "initial": start, "desc": name, "unit": "step"}
    tqdm = import_extra("tqdm", "training").tqdm
    with tqdm(**options, disable=not sys.stderr.isatty()) as bar:
        for done in range(start, num_steps + 1):
            is_last = done == num_steps
            is_new = not evaluations or int(evaluations[-1]["step"]) != done
            if measure is not None and is_new and (is_last or done % evaluate_every == 0):
                step_number = np.asarray(done, np.int32)
                evaluations.append({"step": step_number, **measure(state.params, data)})
            if checkpoint is not None and done > start and (is_last or done % every == 0):
                described = {"config": config, "optimizer": optimizer}
                _keep(checkpoint, state, metrics, evaluations, described)
            if not is_last:
                state, reported = compiled(state, data)
                metrics.append(reported)
                bar.update()
    return TrainResult(state, _stack(metrics), _stack(evaluations))


def train_in_stages(step, state, stops, place, between=None, **options) -> tuple[Any, Any]:
    """Train to each stop of a schedule, and evaluate before the first step and at each of them.

    The checkpoints stand beside ``place``; ``between`` changes the parameters at a stop.
    """
    found = []
    for stop in stops:
        path = place.with_name(f"{place.name}-{stop}.safetensors")
        given = {"checkpoint": path, "every": stops[-1], "evaluate_every": stops[-1]}
        trained = train(step, state, stop, **given, **options)
        state = trained.state
        found.append(trained.evaluations)
        if between is not None:
            state = state._replace(params=between(stop, state.params))
    return state.params, {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def _keep(
    path: Path,
    state: TrainState,
    metrics: list[dict[str, Any]],
    evaluations: list[dict[str, Any]],
    described: dict[str, Any],
) -> None:
    arrays = tree_arrays(state, "state")
    for prefix, rows in (("metrics/", metrics), ("evaluations/", evaluations)):
        arrays |= {f"{prefix}{name}": array for name, array in _stack(rows).items()}
    save_arrays(path, arrays, {**described, "provenance": provenance()})


def _fingerprint(opt_state: Any) -> str:
    """Return the sha256 of the state of an optimizer before the run, its hyperparameters included.

    Adam's is zeros, whatever its rate; that of ``optax.inject_hyperparams`` shows it.
    """
    digest = hashlib.sha256()
    for name, array in tree_arrays(opt_state).items():
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _resume(
    path: Path, like: TrainState, config: dict[str, Any], optimizer: str
) -> tuple[TrainState, list[dict[str, Any]], list[dict[str, Any]]]:
    """Read a checkpoint: the state, and metrics and evaluations row by row."""
    arrays, metadata = load_arrays(path)
    wanted = json.loads(json.dumps(config))
    stored = metadata.get("config")
    check(stored == wanted, str(path), f"a checkpoint of the run {wanted}", stored)
    rows = []
    for prefix in ("metrics/", "evaluations/"):
        columns = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        count = len(next(iter(columns.values()))) if columns else 0
        rows.append([{name: a[i] for name, a in columns.items()} for i in range(count)])
    state = load_tree(arrays, like, "state")
    kept, given = (np.asarray(jax.random.key_data(s.rng_key)) for s in (state, like))
    check(
        bool((kept == given).all()),
        f"{path}: state.rng_key",
        f"the key of this run, {given.tolist()}",
        f"{kept.tolist()}; remove the checkpoint, or give the state that it began with",
    )
    began = metadata.get("optimizer", optimizer)  # files of before have none
    what = "the optimizer that the run began with"
    check(
        began == optimizer, f"{path}: state.opt_state", what, "one of another form or other rates"
    )
    return state, rows[0], rows[1]


def _stack(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in (rows or [{}])[0]}
