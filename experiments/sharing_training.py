"""The trainings of the study of sharing: one compiled program for all runs of one form.

Shapes: the models of all seeds are stacked along the first axis of every leaf, ``seeds``.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.shared import character_model, load_text, slug
from experiments.training import TrainState, init_state, make_train_step, train_in_stages
from mha_book.models import tiny
from mha_book.models.tokens import evenly_spaced_windows, sample_windows

# shared: key/value heads, where there are fewer; uptraining: steps after which the loss is
# measured; windows: of the years not trained on.
Sizes = fields(
    seeds=5, steps=800, batch=16, context=32, d_model=64, num_layers=2, num_heads=8,
    shared=(4, 2, 1), learning_rate=6e-3, uptraining=(8, 16, 40, 80), uptraining_rate=2e-3,
    windows=512,
)  # fmt: skip


class Program(NamedTuple):
    """What is compiled once for all trainings of models of one form; ``start`` draws parameters."""

    start: Callable[..., TrainState]
    step: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    evaluate: Callable[..., dict[str, jax.Array]]


@functools.cache
def program(config: tiny.TinyConfig, batch: int, context: int) -> Program:
    """Return the program of a form; the models of all seeds run in it one after the other.

    On a CPU that takes about half the time of running them side by side.
    """
    # The rate is in the state, not in the program, so that all schedules share one program.
    constants = ("b1", "b2", "eps", "eps_root", "weight_decay")
    optimizer = optax.inject_hyperparams(optax.adamw, static_args=constants)(learning_rate=0.0)
    step = make_train_step(
        lambda params, windows, key: tiny.loss(params, windows, config=config),
        lambda data, key: sample_windows(data["train"], key, batch, context + 1),
        optimizer,
    )

    def scheduled(state: TrainState, data: dict[str, jax.Array]) -> Any:
        now = rate(state.step.astype(jnp.float32), data["steps"], data["rate"])
        given = state.opt_state._replace(hyperparams={"learning_rate": now})
        return step(state._replace(opt_state=given), data)

    def scored(params: tiny.TinyParams, data: dict[str, jax.Array]) -> dict[str, jax.Array]:
        def one(params: tiny.TinyParams) -> jax.Array:
            return tiny.loss(params, data["validation"], config=config)

        return {"validation": jax.lax.map(one, params)}

    def start(key: jax.Array) -> TrainState:
        return init_state(tiny.init_tiny(key, config), optimizer, key)

    return Program(
        jax.jit(jax.vmap(start)),
        lambda state, data: jax.lax.map(lambda one: scheduled(one, data), state),
        scored,
    )


def rate(step: jax.Array, steps: jax.Array, highest: jax.Array) -> jax.Array:
    """Return the learning rate: up in a line over a twelfth of the steps, down as a cosine to 0."""
    warm_up = jnp.maximum(steps // 12, 1.0)
    down = (step - warm_up) / jnp.maximum(steps - warm_up, 1.0)
    cosine = (1.0 + jnp.cos(jnp.pi * jnp.clip(down, 0.0, 1.0))) / 2.0
    return highest * jnp.minimum(step / warm_up, cosine)


class Study:
    def __init__(self, sizes: Sizes, work: Path) -> None:
        text = load_text()
        self.sizes, self.work = sizes, work
        windows = evenly_spaced_windows(text.validation, sizes.windows, sizes.context + 1)
        no_schedule = {"steps": jnp.float32(0), "rate": jnp.float32(0)}
        self.data = {"train": text.train, "validation": windows, **no_schedule}
        self.base = character_model(text, sizes, use_bias=False)
        self.keys = jax.vmap(jax.random.key)(jnp.arange(sizes.seeds))

    def score(self, params: tiny.TinyParams, config: tiny.TinyConfig) -> jax.Array:
        compiled = program(config, self.sizes.batch, self.sizes.context)
        return jax.jit(compiled.evaluate)(params, self.data)["validation"]

    def fit(
        self, config, params, stops, highest, name
    ) -> tuple[tiny.TinyParams, dict[str, np.ndarray]]:
        compiled = program(config, self.sizes.batch, self.sizes.context)
        state = compiled.start(self.keys)
        if params is not None:  # the optimizer starts at zero, whatever the parameters
            state = state._replace(params=params)
        schedule = {"steps": jnp.float32(stops[-1]), "rate": jnp.float32(highest)}
        trained, found = train_in_stages(
            compiled.step, state, stops, self.work / f"sharing-{slug(name)}",
            data=self.data | schedule, evaluate=compiled.evaluate, name=name,
            config={**self.sizes._asdict(), "name": name},
        )  # fmt: skip
        return trained, {"steps": found["step"], "losses": found["validation"].T}

    def uptrain(self, config, params, name) -> dict[str, np.ndarray]:
        stops, highest = self.sizes.uptraining, self.sizes.uptraining_rate
        return self.fit(config, params, stops, highest, name)[1]
