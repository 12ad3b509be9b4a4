"""How models of all seeds are trained on sequences that need heads of two kinds, and measured.

The loss is that of the answers alone. Shapes: the models of all seeds are stacked along the first
axis of every leaf, ``seeds``; ``N`` heads, ``R`` probes of a sequence.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.shared import change_attention
from experiments.training import TrainState, init_state, make_train_step
from mha_book.masks import causal
from mha_book.models import tiny
from mha_book.multihead.parameters import init_multi_head
from mha_book.specialization.patterns import mean_score, visible_pairs
from mha_book.specialization.synthetic import Probes, probe_patterns, probe_sequences

ROLES = ("place", "content")
"""What a head can find at a probe: the item before it, or the item of the colour named."""


def measure(params, config, task, batch) -> dict[str, jax.Array]:
    seen, rows = batch.tokens[:, :-1], task.rows
    logits, records = tiny.forward_with_intermediates(params, seen, config=config)
    logarithms = jax.nn.log_softmax(logits[:, rows])
    answers = logarithms[..., task.first_answer :]
    of_answers = answers.reshape(*answers.shape[:2], -1, task.symbols)  # (B, R, near, far)

    def nats(logarithms: jax.Array, symbol: jax.Array) -> jax.Array:
        return -jnp.mean(jnp.take_along_axis(logarithms, symbol[..., None], -1))

    losses = (
        nats(jax.nn.logsumexp(of_answers, -1), batch.near),
        nats(jax.nn.logsumexp(of_answers, -2), batch.far),
    )
    visible = visible_pairs(causal(), *seen.shape)
    weights = records[0].intermediates.weights
    scores = [mean_score(weights, x) for x in probe_patterns(task, batch, visible)]
    return {
        "loss": nats(logarithms, batch.tokens[:, rows + 1]),
        "losses": jnp.stack(losses),
        "roles": jnp.stack(scores, -1),
    }


class Program(NamedTuple):
    """What is compiled once for all trainings of models of one form.

    ``start`` takes stacked parameters and keys of data; ``evaluate`` measures every model on the
    same sequences; ``data`` has those and the ones to train on, of which every step picks some.
    """

    fresh: Callable[[jax.Array], tiny.TinyParams]
    start: Callable[[tiny.TinyParams, jax.Array], TrainState]
    step: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    evaluate: Callable[..., dict[str, jax.Array]]
    data: dict[str, Probes]
    config: tiny.TinyConfig


@functools.cache
def program(
    task, d_model, num_heads, head_dim, rate, batch, pool, evaluated, steps=None, value_dim=None
) -> Program:
    config = tiny.TinyConfig(
        task.vocabulary, task.length, d_model, 1, num_heads, head_dim=head_dim, d_hidden=0,
        positions="rotary" if task.by_place else "none", use_bias=False, rope_theta=100.0,
    )  # fmt: skip
    schedule = rate if steps is None else optax.cosine_decay_schedule(rate, steps)
    optimizer = optax.adam(schedule)
    rows = task.rows

    def loss(params: tiny.TinyParams, given: Probes, key: jax.Array) -> jax.Array:
        logits = tiny.forward(params, given.tokens[:, :-1], config=config)[:, rows]
        logarithms = jax.nn.log_softmax(logits)
        answers = given.tokens[:, rows + 1, None]
        return -jnp.mean(jnp.take_along_axis(logarithms, answers, -1))

    def pick(data: dict[str, Probes], key: jax.Array) -> Probes:
        rows = jax.random.randint(key, (batch,), 0, pool)
        return jax.tree.map(lambda leaf: leaf[rows], data["train"])

    step = make_train_step(loss, pick, optimizer)

    def fresh(key: jax.Array) -> tiny.TinyParams:
        params = tiny.init_tiny(key, config)
        if value_dim is None:
            return params
        options = {"head_dim": head_dim, "value_dim": value_dim}
        attention = init_multi_head(jax.random.fold_in(key, 1), d_model, num_heads, **options)
        return change_attention(params, lambda *_: attention)

    def evaluate(params: tiny.TinyParams, data: Any) -> dict[str, jax.Array]:
        return jax.lax.map(lambda one: measure(one, config, task, data["evaluated"]), params)

    draw = jax.jit(probe_sequences, static_argnums=(1, 2))
    data = {
        "train": draw(jax.random.key(2**20), task, pool),
        "evaluated": draw(jax.random.key(2**20 + 1), task, evaluated),
    }

    return Program(
        jax.jit(jax.vmap(fresh)),
        jax.jit(jax.vmap(lambda params, key: init_state(params, optimizer, key))),
        lambda state, data: jax.lax.map(lambda one: step(one, data), state), evaluate, data, config,
    )  # fmt: skip
