"""How induction forms: attention alone, one layer or two, on sequences that repeat.

Random tokens repeat after a period that differs between sequences, so that most can be copied, but
from no fixed distance. Follows the loss there, what the heads look at, and the loss where queries,
keys or values of a layer are made from the embeddings alone. What was expected stands in
``expected/emergence.md``.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.harness.fields import fields
from experiments.shared import Run, experiment
from experiments.training import init_state, make_train_step, train
from mha_book.attention.reference import attention_weights
from mha_book.layers import layer_norm
from mha_book.masks import causal
from mha_book.models import tiny
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.specialization.patterns import at_offset, mean_score, prefix_matching, visible_pairs

ROUTES = ("queries", "keys", "values")
Sizes = fields(seeds=6, steps=800, every=20, batch=32, evaluated=128, rate=2e-3)
QUICK = Sizes(2, 2, 1, 2, 2)
CONFIG = {"vocab_size": 64, "max_length": 48, "d_model": 64, "num_heads": 2, "d_hidden": 0,
          "positions": "rotary", "use_bias": False, "rope_theta": 100.0}  # fmt: skip


def sequences(key: jax.Array, batch: int) -> tuple[jax.Array, jax.Array]:
    """Draw tokens ``(B, T)`` and periods ``(B, 1)`` from 8 to 24."""
    keys, period_key = jax.random.split(key)
    period = jax.random.randint(period_key, (batch, 1), 8, 25)
    orders = jax.vmap(lambda key: jax.random.permutation(key, 64))(jax.random.split(keys, batch))
    return jnp.take_along_axis(orders, jnp.arange(48)[None] % period, 1), period


def forward(params: Any, tokens: jax.Array, config: Any, without: str = "") -> Any:
    """Return logits, and weights by layer; ``without`` is made from the embeddings alone."""
    embedded = x = params.token_embedding[tokens]
    all_weights = []
    for layer in params.layers:
        read = (layer_norm(embedded if route == without else x, *layer.attention_norm)
                for route in ROUTES)  # fmt: skip
        query, key, value = (
            project_qkv(layer.attention, inputs, angles=tiny.angles(config, tokens))[number]
            for number, inputs in enumerate(read)
        )
        all_weights.append(attention_weights(query, key, is_causal=True))
        x = x + project_output(layer.attention, all_weights[-1] @ value)
    return layer_norm(x, *params.output_norm) @ params.unembedding, all_weights


def measure(params: Any, drawn: Any, config: Any) -> dict[str, Any]:
    tokens, period = drawn
    copied, visible = jnp.arange(1, 48)[None] > period, visible_pairs(causal(), len(tokens), 48)

    def loss(logits: jax.Array, where: jax.Array) -> jax.Array:
        logits, targets = logits[:, :-1], tokens[:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean(where=where)

    logits, weights = forward(params, tokens, config)
    patterns = {"previous": at_offset(visible, -1), "matching": prefix_matching(visible, tokens)}
    last = params.layers[-1]
    raised = jnp.einsum(
        "td,dnh,nhe,ev->ntv", layer_norm(params.token_embedding, *last.attention_norm),
        last.attention.w_v, last.attention.w_o, params.unembedding,
    )  # fmt: skip
    return {
        "copied": loss(logits, copied), "first": loss(logits, ~copied),
        "copying": (raised.argmax(-1) == jnp.arange(64)[None]).mean(1),  # (N,), of the last layer
        **{n: jnp.stack([mean_score(w, x) for w in weights]) for n, x in patterns.items()},
        **{route: loss(forward(params, tokens, config, route)[0], copied) for route in ROUTES},
    }  # fmt: skip


def trained(layers: int, s: Any) -> Any:
    config, optimizer = tiny.TinyConfig(num_layers=layers, **CONFIG), optax.adam(s.rate)
    drawn, keys = sequences(jax.random.key(2**20), s.evaluated), jnp.arange(s.seeds)

    def loss(params: Any, drawn: Any, _: jax.Array) -> jax.Array:
        return tiny.token_losses(params, drawn[0], config=config).mean()

    step = make_train_step(loss, lambda _, key: sequences(key, s.batch), optimizer)
    start = jax.vmap(lambda n: init_state(
        tiny.init_tiny(jax.random.key(n), config), optimizer, jax.random.key(n)))(keys)  # fmt: skip
    evaluate = jax.vmap(lambda params, _: measure(params, drawn, config), (0, None))
    many = jax.vmap(lambda state, _: step(state, None), (0, None))
    return train(many, start, s.steps, evaluate=evaluate, evaluate_every=s.every).evaluations


@experiment("transition.json", Sizes(), QUICK, digits=3, seeds="models, batches: 0 to 5")
def main(run: Run, sizes: Any) -> dict[str, Any]:
    return {f"layers: {layers}": trained(layers, sizes) for layers in (1, 2)}
