"""The trainings of the study of gates: one compiled program for all runs of one length.

A run has the weights of a model and the logits of its hard concrete gates. Learned gates are drawn
in the first part of a training and paid for; then they stay where they are. Fixed ones are no other
program: at a logit of plus or minus :data:`FIXED` every draw is 1 or 0 and has no gradient.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.shared import character_model, load_text
from experiments.training import TrainState, init_state, make_train_step, train_in_stages
from mha_book.models import tiny
from mha_book.models.tokens import evenly_spaced_windows, sample_windows
from mha_book.pruning import importance
from mha_book.pruning.hard_concrete import HardConcrete

FIXED = 20.0


# tuning: steps after a removal, or with gates that are learned; learning: the first of these, in
# which learned gates are drawn; prices: of an open head, in nats; noises: how often the gates of
# one model are learned again; fractions: of the heads that go; stops: steps after which the loss
# is measured; windows: of the years not trained
# on; ranking_windows: of those trained on.
Sizes = fields(
    seeds=5, steps=600, tuning=240, learning=160, batch=16, context=32, d_model=64,
    num_layers=2, num_heads=8, learning_rate=6e-3, tuning_rate=2e-3, gate_rate=0.1,
    prices=(0.0, 0.05, 0.1, 0.15, 0.3), noises=5, noisy_price=0.1, fractions=(0.3, 0.5, 0.7),
    stops=(15, 30, 60, 120, 240), windows=256, ranking_windows=64,
)  # fmt: skip


class Weights(NamedTuple):
    model: tiny.TinyParams  # the parameters of the transformer
    log_alpha: jax.Array  # ``(L, N)``, the logits of its gates


class Runs(NamedTuple):
    """What distinguishes the runs of one training, each ``(R,)``."""

    seeds: jax.Array  # which batches are drawn
    prices: jax.Array  # of an expected open head
    noises: jax.Array  # which gates are drawn

    @classmethod
    def of(cls, seeds: Any, prices: Any = 0.0, noises: Any = 0) -> "Runs":
        """Return runs of several seeds; a single price or noise is that of all."""
        shape = np.shape(seeds)
        return cls(
            jnp.asarray(seeds, jnp.int32),
            jnp.broadcast_to(jnp.asarray(prices, jnp.float32), shape),
            jnp.broadcast_to(jnp.asarray(noises, jnp.int32), shape),
        )


def fixed(keep: Any) -> jax.Array:
    """Return the logits with which gates are 1 where ``keep`` is true, else 0, in every draw."""
    return jnp.where(jnp.asarray(keep), FIXED, -FIXED).astype(jnp.float32)


@functools.cache
def program(config: tiny.TinyConfig, sizes: Sizes, steps: int, rate: float, learning: int) -> Any:
    """Return step and start of all trainings of one length; their runs go one after the other.

    On a CPU that takes about half the time of running them side by side.
    """
    warm_up = optax.warmup_cosine_decay_schedule(0.0, rate, steps // 12, steps)
    rates = {
        "model": optax.adam(warm_up),
        "gates": optax.adam(lambda count: jnp.where(count < learning, sizes.gate_rate, 0.0)),
    }
    optimizer = optax.partition(rates, Weights("model", "gates"))

    def loss(weights: Weights, given: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        key = jax.random.fold_in(key, given["noise"])
        learned = HardConcrete(weights.log_alpha)
        gates = jnp.where(given["is_drawn"], learned.sample(key), learned.deterministic())
        due = given["price"] * learned.expected_l0()
        return tiny.loss(weights.model, given["windows"], config=config, gates=gates) + due

    def batch(data: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        return data | {
            "windows": sample_windows(data["train"], key, sizes.batch, sizes.context + 1)
        }

    one_step = make_train_step(loss, batch, optimizer)

    def step(state: TrainState, data: dict[str, Any]) -> tuple[TrainState, dict[str, jax.Array]]:
        def one(of_run: tuple[TrainState, Runs]) -> Any:
            now, run = of_run
            given = {"price": run.prices, "noise": run.noises, "is_drawn": now.step < learning}
            return one_step(now, {"train": data["train"], **given})

        return jax.lax.map(one, (state, data["runs"]))

    def start(weights: Weights, seeds: jax.Array) -> TrainState:
        keys = jax.vmap(jax.random.key)(seeds)
        return jax.vmap(lambda w, key: init_state(w, optimizer, key))(weights, keys)

    return step, jax.jit(start)


class Study:
    def __init__(self, sizes: Sizes, work: Path) -> None:
        text = load_text()
        self.sizes, self.work = sizes, work
        self.config = character_model(text, sizes, use_bias=False)
        validation = evenly_spaced_windows(text.validation, sizes.windows, sizes.context + 1)
        self.data = {"train": text.train, "validation": validation}
        self.ranking = evenly_spaced_windows(text.train, sizes.ranking_windows, sizes.context + 1)
        self.shape = (sizes.num_layers, sizes.num_heads)

        def evaluate(weights: Weights, data: dict[str, jax.Array]) -> dict[str, jax.Array]:
            def one(weights: Weights) -> jax.Array:
                gates = HardConcrete(weights.log_alpha).deterministic()
                return tiny.loss(weights.model, data["validation"], config=self.config, gates=gates)

            return {"validation": jax.lax.map(one, weights)}

        self.evaluate = evaluate

    def fresh(self, seeds: Any) -> tiny.TinyParams:
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
        return jax.jit(jax.vmap(lambda key: tiny.init_tiny(key, self.config)))(keys)

    def fit(self, weights, runs, name, *, rate, stops, learning=0) -> tuple[Weights, np.ndarray]:
        step, start = program(self.config, self.sizes, stops[-1], rate, learning)
        options = {"data": self.data | {"runs": runs}, "evaluate": self.evaluate, "name": name}
        trained, found = train_in_stages(
            step, start(weights, runs.seeds), stops, self.work / f"gates-{name}",
            config={**self.sizes._asdict(), "name": name}, **options,
        )  # fmt: skip
        return trained, found["validation"].T

    def whole(self) -> tuple[Weights, np.ndarray]:
        sizes = self.sizes
        seeds = np.arange(sizes.seeds)
        every_head = fixed(np.ones((sizes.seeds, *self.shape), bool))
        weights, runs = Weights(self.fresh(seeds), every_head), Runs.of(seeds)
        return self.fit(weights, runs, "base", rate=sizes.learning_rate, stops=(sizes.steps,))

    def tune(self, weights: Weights, runs: Runs, name: str, **options: Any) -> Any:
        tuning = {"rate": self.sizes.tuning_rate, "stops": self.sizes.stops}
        return self.fit(weights, runs, name, **(tuning | options))

    def scores(self, weights: Weights) -> dict[str, np.ndarray]:
        """Return the importance of all heads of all runs on the years trained on, ``(R, L, N)``."""

        def loss(model: tiny.TinyParams, gates: jax.Array, ids: jax.Array) -> jax.Array:
            return tiny.loss(model, ids, config=self.config, gates=gates)

        def one(weights: Weights, ids: jax.Array) -> dict[str, jax.Array]:
            given = (loss, weights.model, HardConcrete(weights.log_alpha).deterministic())
            slopes = jax.lax.map(lambda row: importance.gate_gradient(*given, row[None]), ids)
            return {"ablation": importance.ablation(*given, ids), "gradient": slopes.mean(0)}

        every = jax.jit(lambda all_runs, ids: jax.lax.map(lambda w: one(w, ids), all_runs))
        return jax.tree.map(np.asarray, every(weights, self.ranking))
