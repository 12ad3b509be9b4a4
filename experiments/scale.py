"""One head trained from scratch with its scores divided by the root of its width, and without.

The task: a sequence of names, each with a value; the query is one of the names, the answer its
value. Three arms at three widths: scaled; unscaled from the same start; unscaled, with a start of
W_Q that makes the first scores those of the scaled arm. All seeds and learning rates of an arm
train at once. What was expected stands in experiments/expected/scale.md.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from benchmarks.harness.fields import fields
from experiments.shared import Run, experiment
from experiments.training import TrainResult, TrainState, init_state, make_train_step, train
from mha_book import attention_weights, scaled_dot_product_attention

SEEDS = "a seed draws weights and batches: rates are chosen on 0 to 3, results are of 4 to 11"
ARMS = ("scaled", "unscaled", "unscaled, smaller start")


# choosing_seeds: the learning rate is chosen on these; seeds: and these are reported; length:
# names in a sequence; test: sequences.
Sizes = fields(
    widths=(16, 64, 256), rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), choosing_seeds=4,
    seeds=8, steps=400, batch=32, names=32, values=16, length=16, d_model=32, test=512,
    evaluate_every=20,
)  # fmt: skip
QUICK = Sizes((8, 32), (3e-3, 1e-2), 1, 2, steps=6, batch=4, names=8, length=4, d_model=8, test=16)


class HeadParams(NamedTuple):
    """The model: two tables of embeddings, one head, a readout."""

    names: Float[Array, "names D"]
    values: Float[Array, "values D"]
    w_q: Float[Array, "D H"]
    w_k: Float[Array, "D H"]
    w_v: Float[Array, "D D"]
    w_out: Float[Array, "D values"]


class Examples(NamedTuple):
    names: Int[Array, "B S"]
    values: Int[Array, "B S"]
    place: Int[Array, "B"]


def draw(rng_key: Key[Array, ""], count: int, sizes: Sizes) -> Examples:
    name_key, value_key, place_key = jax.random.split(rng_key, 3)
    order = jax.vmap(lambda k: jax.random.permutation(k, sizes.names))
    names = order(jax.random.split(name_key, count))[:, : sizes.length]
    values = jax.random.randint(value_key, names.shape, 0, sizes.values)
    return Examples(names, values, jax.random.randint(place_key, (count,), 0, sizes.length))


def init(rng_key: Key[Array, ""], width: int, arm: str, sizes: Sizes) -> HeadParams:
    """Draw the start: queries and keys with entries of variance 1, whatever the width."""
    d = sizes.d_model
    tables, projections = ((sizes.names, d), (sizes.values, d)), ((d, width), (d, width), (d, d))
    shapes = HeadParams(*tables, *projections, (d, sizes.values))
    keys = HeadParams(*jax.random.split(rng_key, len(shapes)))
    params = HeadParams(*(jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)))
    root = math.sqrt(d)
    params = HeadParams(*params[:2], *(w / root for w in params[2:]))
    return params._replace(w_q=params.w_q / math.sqrt(width)) if arm == ARMS[2] else params


def operands(params: HeadParams, examples: Examples) -> tuple[Array, Array, Array]:
    """Return queries ``(B, 1, H)``, keys ``(B, S, H)`` and values ``(B, S, D)``."""
    asked = jnp.take_along_axis(examples.names, examples.place[:, None], axis=-1)  # (B, 1)
    tokens = (params.names[examples.names] + params.values[examples.values]) / math.sqrt(2)
    return params.names[asked] @ params.w_q, tokens @ params.w_k, tokens @ params.w_v


def scale_of(arm: str, width: int) -> float:
    return 1 / math.sqrt(width) if arm == ARMS[0] else 1.0


def answers(params: HeadParams, examples: Examples, scale: float) -> Float[Array, "B values"]:
    output = scaled_dot_product_attention(*operands(params, examples), scale=scale)
    return output[:, 0] @ params.w_out


def loss_of(answer: Float[Array, "B values"], examples: Examples) -> Float[Array, ""]:
    right = jnp.take_along_axis(examples.values, examples.place[:, None], axis=-1)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(answer), right, axis=-1))


def fit(sizes, arm, width, rates, seeds, checkpoint) -> TrainResult:
    scale = scale_of(arm, width)
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=1.0)
    step = make_train_step(
        lambda params, examples, _: loss_of(answers(params, examples, scale), examples),
        lambda _, key: draw(key, sizes.batch, sizes),
        optimizer,
    )

    def begin(rate: Array, seed: Array) -> TrainState:
        state = init_state(
            init(jax.random.key(seed), width, arm, sizes), optimizer, jax.random.key(seed)
        )
        return state._replace(
            opt_state=state.opt_state._replace(hyperparams={"learning_rate": rate})
        )

    test = draw(jax.random.key(2**20), sizes.test, sizes)

    def evaluate(params: HeadParams, _: Any) -> dict[str, Array]:
        return {"loss": jax.vmap(lambda p: loss_of(answers(p, test, scale), test))(params)}

    rates = jnp.asarray(rates, jnp.float32)
    return train(
        jax.vmap(step, in_axes=(0, None)), jax.vmap(begin)(rates, jnp.asarray(seeds, jnp.int32)),
        sizes.steps, checkpoint=checkpoint, evaluate=evaluate, evaluate_every=sizes.evaluate_every,
        config={**sizes._asdict(), "arm": arm, "width": width, "seeds": np.asarray(seeds).tolist()},
        name=f"{arm}, {width}",
    )  # fmt: skip


def start_of(sizes: Sizes, arm: str, width: int, seed: int) -> dict[str, float]:
    """Return the share of test sequences whose right key has less than 1/1000 before training."""
    params = init(jax.random.key(seed), width, arm, sizes)
    test = draw(jax.random.key(2**20), sizes.test, sizes)
    query, key, _ = operands(params, test)
    weights = attention_weights(query, key, scale=scale_of(arm, width))[:, 0]
    right = jnp.take_along_axis(weights, test.place[:, None], axis=-1)
    return {"right_below_thousandth": float((right < 1e-3).mean())}


@experiment("scale.json", Sizes(), QUICK, digits=6, seeds=SEEDS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    number = sizes.choosing_seeds + sizes.seeds
    rates = np.repeat(np.array(sizes.rates, np.float32), number)
    seeds = np.tile(np.arange(number), len(sizes.rates))
    document: dict[str, Any] = {arm: {} for arm in ARMS}
    for arm, width in itertools.product(ARMS, sizes.widths):
        checkpoint = run.work / f"scale-{ARMS.index(arm)}-{width}.safetensors"
        trained = fit(sizes, arm, width, rates, seeds, checkpoint)
        steps = trained.evaluations["step"]
        shape = (len(steps), len(sizes.rates), number)
        loss = trained.evaluations["loss"].reshape(shape)
        last = np.where(np.isfinite(loss[-1]), loss[-1], np.inf)
        best = int(last[:, : sizes.choosing_seeds].mean(-1).argmin())
        reported = np.s_[:, best, sizes.choosing_seeds :]
        first = [start_of(sizes, arm, width, s) for s in range(sizes.choosing_seeds, number)]
        document[arm][str(width)] = {
            "best_rate": sizes.rates[best], "loss": loss[reported][-1],
            "loss_by_rate": loss[-1, :, sizes.choosing_seeds :],
            "curve_steps": steps, "curve_loss": loss[reported].T,
            "start": {name: [row[name] for row in first] for name in first[0]},
        }  # fmt: skip
        run.report(f"{arm}, width {width}: rate {sizes.rates[best]:g}")
    return document
