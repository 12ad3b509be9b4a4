"""A few steps of training for SmolLM2 without 30% of its heads, and for the whole model.

Only the attention layers are trained: the norms, the feed-forward parts and the embedding stay. The
heads that go are those with the least gate gradient (book/data/heads.json).
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.heads import windows
from experiments.shared import Run, change_attention, first_layers, stored
from experiments.training import apply_gradients
from mha_book.models import smollm2
from mha_book.pruning.order import head_mask, removal_order

# context: tokens of a window, the first one included; measured: windows of the validation years.
Sizes = fields(layers=30, steps=16, batch=2, context=101, measured=24, rate=1e-4, fraction=0.3)
QUICK = Sizes(1, 1, 1, 13, 2)


def kept_heads(layers: int, fraction: float) -> np.ndarray:
    """Return which heads stay, ``(L, N)``, when those of the least gate gradient go."""
    scores = np.array(stored("heads.json")["importance"]["gate gradient"])[:layers]
    return head_mask(removal_order(scores), round(fraction * scores.size), scores.shape)


def trained(run: Run) -> dict[str, Any]:
    sizes = QUICK if run.quick else Sizes()
    return run.once("smollm2", sizes, functools.partial(trained_both, sizes))


def trained_both(sizes: Sizes) -> dict[str, Any]:
    begun, cpu = time.monotonic(), time.process_time()
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    form, whole = model.config, model.params
    rows = windows(model, "train", sizes.steps * sizes.batch, sizes.context)
    batches = rows.reshape(sizes.batch, sizes.steps, -1).swapaxes(0, 1)  # all years in each
    measured = windows(model, "validation", sizes.measured, sizes.context)
    optimizer = optax.adam(sizes.rate)

    def loss(attention: Any, params: Any, gates: jax.Array, ids: jax.Array) -> jax.Array:
        changed = change_attention(params, lambda _, number: attention[number])
        return smollm2.loss(changed, ids, config=form, gates=gates)

    @jax.jit
    def step(attention: Any, state: Any, params: Any, gates: jax.Array, ids: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(attention, params, gates, ids)
        return *apply_gradients(optimizer, gradient, state, attention), value

    score = jax.jit(loss)

    def scored(attention: Any, gates: jax.Array) -> list[float]:
        return [float(score(attention, whole, gates, row[None])) for row in measured]

    keep = kept_heads(sizes.layers, sizes.fraction)
    found = {"config": sizes._asdict(), "removed": int((~keep).sum()), "heads": keep.size}
    for name, gates in (
        ("whole", jnp.ones(keep.shape)),
        ("removed heads", jnp.asarray(keep, jnp.float32)),
    ):
        attention = tuple(layer.attention for layer in whole.layers)
        before, state, values = scored(attention, gates), optimizer.init(attention), []
        for ids in batches:
            attention, state, value = step(attention, state, whole, gates, ids)
            values.append(float(value))
        found[name] = {"before": before, "after": scored(attention, gates), "training": values}
        print(f"SmolLM2, {name}: {np.mean(before):.3f} to {np.mean(found[name]['after']):.3f}")
    found["seconds"] = time.monotonic() - begun
    found["processor seconds"] = time.process_time() - cpu
    return found
