"""Train a tiny transformer with gradients by hand and, from the same start, with autodiff.

At every step of both trainings the gradients are compared at the same parameters, those of the
training by hand. In float32 and in float64; in float32 also with the gradient in float64 at the
same parameters, which tells whose rounding it is. Stores book/data/gradients-training.json.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.shared import Run, experiment, load_text
from experiments.training import TrainResult, TrainState, apply_gradients, train
from mha_book.models import tiny
from mha_book.models.tokens import sample_windows

SEEDS = "model: 0; batches: 1"
INPUTS = ("sotu",)
HAND, AUTODIFF = "manual", "reference"
Sizes = fields(steps=200, batch=16, context=64, d_model=64, learning_rate=3e-3, seed=0)
QUICK = Sizes(steps=4, batch=2, context=12, d_model=16)


def both_ways(text, sizes, dtype, checkpoint) -> tuple[TrainResult, list[str]]:
    config = tiny.TinyConfig(len(text.characters) + 1, sizes.context, sizes.d_model)
    optimizer = optax.adam(sizes.learning_rate)
    start = tiny.init_tiny(jax.random.key(sizes.seed), config, dtype)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(start)]

    def gradient(params: Any, batch: jax.Array, name: str) -> tuple[jax.Array, Any]:
        def loss(params: Any) -> jax.Array:
            return tiny.loss(params, batch, config=config, implementation=name)

        return jax.value_and_grad(loss)(params)

    def step(state: TrainState, data: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.rng_key, state.step)
        batch = sample_windows(data, key, sizes.batch, sizes.context + 1)
        report, params, opt_state, gradients = {}, {}, {}, {}
        for name in (HAND, AUTODIFF):
            before = state.params[name]
            report[f"loss {name}"], gradients[name] = gradient(before, batch, name)
            params[name], opt_state[name] = apply_gradients(
                optimizer, gradients[name], state.opt_state[name], before
            )
        same = gradient(state.params[HAND], batch, AUTODIFF)[1]
        exact = gradient(widen(state.params[HAND]), batch, AUTODIFF)[1]
        for name, own in ((AUTODIFF, same), (HAND, gradients[HAND])):
            report[f"to float64 {name}"] = leaf_norms(widen(own), exact) / leaf_norms(exact)
        report["relative"] = leaf_norms(gradients[HAND], same) / leaf_norms(same)
        report["parameters apart"] = leaf_norms(params[HAND], params[AUTODIFF])
        report["norm of the parameters"] = leaf_norms(params[AUTODIFF])
        return TrainState(state.step + 1, params, opt_state, state.rng_key), report

    both = {HAND: start, AUTODIFF: start}
    state = TrainState(
        jnp.zeros((), jnp.int32), both, {name: optimizer.init(start) for name in both},
        jax.random.key(sizes.seed + 1),
    )  # fmt: skip
    result = train(
        step, state, sizes.steps, data=text.train, checkpoint=checkpoint,
        config={**sizes._asdict(), "dtype": jnp.dtype(dtype).name},
        name=f"by hand and by autodiff, {jnp.dtype(dtype).name}",
    )  # fmt: skip
    return result, names


def widen(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), tree)


def leaf_norms(tree: Any, other: Any = None) -> jax.Array:
    if other is not None:
        tree = jax.tree.map(jnp.subtract, tree, other)
    return jnp.stack([jnp.linalg.norm(leaf.ravel()) for leaf in jax.tree.leaves(tree)])


def summary(result: TrainResult, names: list[str]) -> dict[str, Any]:
    """Return what the chapter needs of one run: numbers for each step, or for each leaf."""
    metrics = {name: np.asarray(array, np.float64) for name, array in result.metrics.items()}
    is_key_bias = np.array([name.endswith(".b_k") for name in names])
    assert is_key_bias.any()
    document: dict[str, Any] = {
        "losses": {name: metrics[f"loss {name}"] for name in (HAND, AUTODIFF)},
        "largest_difference_of_losses": np.abs(
            metrics[f"loss {HAND}"] - metrics[f"loss {AUTODIFF}"]
        ).max(),
    }
    relative = metrics["relative"][:, ~is_key_bias].max(1)
    document[f"gradient_{HAND}"] = {"relative_by_step": relative}
    document["gradient_to_float64"] = {
        f"{name}_by_step": metrics[f"to float64 {name}"][:, ~is_key_bias].max(1)
        for name in (HAND, AUTODIFF)
    }
    norms, apart = metrics["norm of the parameters"], metrics["parameters apart"]
    document["parameters_apart"] = {
        "key_bias_by_step": np.linalg.norm(apart[:, is_key_bias], axis=1),
        "rest_by_step": np.linalg.norm(apart[:, ~is_key_bias], axis=1),
        "norm_of_the_key_bias_by_step": np.linalg.norm(norms[:, is_key_bias], axis=1),
        "norm_of_the_rest_by_step": np.linalg.norm(norms[:, ~is_key_bias], axis=1),
    }
    return document


@experiment("gradients-training.json", Sizes(), QUICK, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    text = load_text()
    model = tiny.TinyConfig(len(text.characters) + 1, sizes.context, sizes.d_model)
    document: dict[str, Any] = {}
    for dtype in ("float32", "float64"):
        with jax.enable_x64(True):
            checkpoint = run.work / f"hand-gradients-{dtype}.safetensors"
            document[dtype] = summary(*both_ways(text, sizes, jnp.dtype(dtype), checkpoint))
        apart = document[dtype]["largest_difference_of_losses"]
        run.report(f"{dtype}: losses at most {apart:.1e} apart")
    return {**document, "model": dataclasses.asdict(model)}
