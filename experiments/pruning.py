"""How far SmolLM2 and MiniLM get without heads: curves for each importance, and random control.

Heads go in the order of an importance that was measured on addresses of the training years, as
heads.json has it, or is measured here; what the model does without them is scored on other
addresses, of the validation years, each text on its own. Also: whether heads of which none is
missed alone are not missed together.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import addresses, gated_loss, windows
from experiments.shared import SOURCES, Run, experiment, first_layers, stored
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import tokenize
from mha_book.pruning import importance
from mha_book.pruning.order import head_mask, iterative_removal_order, removal_order

SEEDS = "random orders: 0 to 4; order of heads not missed alone: 0"
INPUTS = (*SOURCES, "heads.json")
START = 2000  # characters of an address before the passage that is scored
GROUP = 3  # query heads of SmolLM2 that share a key head


# layers: of SmolLM2; texts: passages that SmolLM2 is scored on; context: tokens of such a
# passage; ranking:
# windows that heads are ranked on again after each round; sentence_layers: of MiniLM; sentences:
# of an address, scored; one of each address for the ranking; missed: heads of which none is
# missed alone; orders: in which these are put together.
Sizes = fields(
    layers=30, texts=24, context=33, ranking=8, ranking_context=101, rounds=6,
    sentence_layers=6, sentences=6, fractions=(0.05, 0.1, 0.2, 0.3, 0.4, 0.5), draws=5,
    missed=16, orders=1,
)  # fmt: skip
QUICK = Sizes(
    1, 2, 9, 1, 9, 2, sentence_layers=1, sentences=2, fractions=(0.34,), draws=1,
    missed=4, orders=1,
)  # fmt: skip


def sentences(split: str, count: int, each: int) -> list[str]:
    """Return ``each`` sentences of middling length from each of ``count`` addresses of a split."""
    found = []
    for text in addresses(split, count):
        every = [s.strip() + "." for s in text.replace("\n", " ").split(". ")]
        every = [s for s in every if 60 < len(s) < 240]
        found += [every[i] for i in np.linspace(3, len(every) - 1, each).astype(int)]
    return found


def passages(model: Any, split: str, count: int, length: int) -> jax.Array:
    """Return what stands some way into evenly spaced addresses of a split, ``(B, T)``.

    Their beginnings, by which heads are ranked, are alike: they greet the same houses.
    """
    rows = []
    for text in addresses(split, count):
        inside = text[text.index(" ", START) + 1 :]
        rows.append(model.tokenizer.encode(inside[: 12 * length]).ids[:length])
    return jnp.asarray(np.array(rows, np.int32))


def smollm2_scores(model, params, ids, at_once=None) -> Callable[[np.ndarray], Any]:
    """Return a function from heads kept to loss and accuracy of each text, ``(2, B)``."""

    @jax.jit
    def scores(params: Any, gates: jax.Array, ids: jax.Array) -> jax.Array:
        logits = smollm2.forward(params, ids, config=model.config, gates=gates)[:, :-1]
        log_p = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(log_p, ids[:, 1:, None], -1)[..., 0]
        return jnp.stack([losses.mean(1), (logits.argmax(-1) == ids[:, 1:]).mean(1)])

    def batches(keep: np.ndarray) -> np.ndarray:
        gates, step = jnp.asarray(keep, jnp.float32), at_once or len(ids)
        found = [scores(params, gates, ids[i : i + step]) for i in range(0, len(ids), step)]
        return np.concatenate(found, axis=1)

    return batches


def minilm_scores(params: Any, *batch: jax.Array) -> Callable[[np.ndarray], Any]:
    """Return a function from heads kept to the likeness of each sentence to itself, ``(2, B)``.

    The cosine of its embedding with that of the whole model, and whether the nearest of the other
    sentences is the same one.
    """
    embed = jax.jit(minilm.embed)
    whole = np.asarray(embed(params, *batch), np.float64)

    def nearest(embeddings: np.ndarray) -> np.ndarray:
        return np.argmax(embeddings @ embeddings.T - 2 * np.eye(len(embeddings)), axis=1)

    def scores(keep: np.ndarray) -> np.ndarray:
        gates = jnp.asarray(keep, jnp.float32)
        without = np.asarray(embed(params, *batch, gates=gates), np.float64)
        return np.stack([(whole * without).sum(1), nearest(whole) == nearest(without)])

    return scores


def curve(scores, order, counts, shape) -> dict[str, Any]:
    """Return the scores of every text with the first heads of an order removed."""
    found = np.stack([scores(head_mask(order, count, shape)) for count in counts])
    return {"heads": list(counts), "scores": found}


def together(scores, heads, shape, orders) -> dict[str, Any]:
    """Return the rise of the loss of every text without each head, and without sets of them."""
    whole, sets = scores(np.ones(shape, bool)), []

    def rise(chosen: np.ndarray) -> np.ndarray:
        return (scores(head_mask(chosen, len(chosen), shape)) - whole)[0]

    for seed in range(orders):
        shuffled = np.random.default_rng(seed).permutation(len(heads))
        size = 2
        while size < len(heads) or (size == len(heads) and seed == 0):
            members = shuffled[:size]
            sets.append({"members": members, "rise": rise(heads[members])})
            size *= 2
    return {"heads": heads, "alone": [rise(head[None]) for head in heads], "sets": sets}


def sums_of_stored(losses, alone, draws) -> dict[str, Any]:
    """Return joint effects of sets of heads, with the sums of what each does on the same text.

    The sets have the heads that are missed least alone, and are drawn from all heads as a control.
    """
    whole = float(losses(np.ones(alone.shape, bool)))

    def rises(order: np.ndarray, size: int) -> dict[str, float]:
        keep = head_mask(order, size, alone.shape)
        joint = float(losses(keep)) - whole
        return {"size": size, "sum": float(alone[~keep].sum()), "joint": joint}

    least = removal_order(abs(alone))
    found = {"loss": whole, "least": [rises(least, size) for size in (16, 32, 64, 128)]}
    drawn = [jax.random.uniform(jax.random.key(seed), alone.shape) for seed in range(draws)]
    found["random"] = [rises(removal_order(d), size) for d in drawn for size in (16, 64)]
    return found


def counts_of(sizes: Sizes, total: int, group_size: int = 1) -> list[int]:
    return [group_size * round(f * total / group_size) for f in sizes.fractions]


def of_smollm2(sizes: Sizes, heads: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return all that is measured on SmolLM2."""
    whole_model = smollm2.load_smollm2()
    model = first_layers(whole_model, sizes.layers)
    config, params = model.config, model.params
    shape, total = (sizes.layers, config.num_heads), sizes.layers * config.num_heads
    text = passages(model, "validation", sizes.texts, sizes.context)
    scores = smollm2_scores(model, params, text)
    whole = np.ones(shape, bool)
    found: dict[str, Any] = {"whole": scores(whole)}

    stored = {name: np.array(score)[: sizes.layers] for name, score in heads["importance"].items()}
    basic = {name: stored[name] for name in ("ablation", "gate gradient")}
    draws = [jax.random.uniform(jax.random.key(i), shape) for i in range(sizes.draws)]
    orders = {name: removal_order(score) for name, score in basic.items()}
    orders |= {f"random {i}": removal_order(score) for i, score in enumerate(draws)}
    # What sorting "the loss with it minus the loss without it" in descending order removes.
    orders["sign of the loss without it"] = removal_order(-stored["ablation"])

    ranking = windows(model, "train", sizes.ranking, sizes.ranking_context)
    gradient = jax.jit(lambda *given: importance.gate_gradient(gated_loss(config), *given))

    def sensitivity(keep: np.ndarray) -> np.ndarray:
        gates = jnp.asarray(keep, jnp.float32)
        return np.mean([np.asarray(gradient(params, gates, row[None])) for row in ranking], axis=0)

    for name, group_size in (("iterative", 1), ("iterative groups", GROUP)):
        counts = counts_of(sizes, total, group_size)
        per_round = group_size * -(-max(counts) // sizes.rounds // group_size)
        given = {"per_round": per_round, "group_size": group_size}
        rank = partial(iterative_removal_order, sensitivity, shape, max(counts), **given)
        orders[name] = np.array(run.once(f"order {name}", sizes, rank))
    run.report("orders of SmolLM2")

    every = tuple(range(len(sizes.fractions)))
    at = sizes.fractions.index(0.3) if 0.3 in sizes.fractions else 0
    found["curves"] = {}
    for name, order in orders.items():
        if name == "iterative groups":  # scored on longer passages, by experiments.pruning_alike
            continue
        points = every if name in basic else every[1::2] or every
        points = (at,) if name == "sign of the loss without it" else points
        counts = counts_of(sizes, total)
        measure = partial(curve, scores, order, [counts[i] for i in points], shape)
        found["curves"][name] = run.once(f"curve {name}", sizes, measure)
    found["orders"] = {name: orders[name] for name in ("iterative", "iterative groups")}

    unmissed = removal_order(abs(stored["ablation"]))[: sizes.missed]
    measure = partial(together, scores, unmissed, shape, sizes.orders)
    found["together"] = run.once("together", sizes, measure)
    order = removal_order(abs(stored["ablation"]))
    found["together"]["more"] = curve(
        scores, order, [min(size, total) for size in (64, 128)], shape
    )
    if sizes.layers == len(whole_model.params.layers):
        ids = windows(model, "train", heads["config"]["gradients"], heads["config"]["context"])
        ids = ids[: heads["config"]["ablations"]]
        loss = jax.jit(gated_loss(config))
        losses = lambda keep: loss(params, jnp.asarray(keep, jnp.float32), ids)  # noqa: E731
        measure = partial(sums_of_stored, losses, stored["ablation"], sizes.draws)
        found["random together"] = run.once("random together", sizes, measure)
    return found


def of_minilm(sizes: Sizes, run: Run) -> dict[str, Any]:
    """Return all that is measured on MiniLM."""
    model = minilm.load_minilm()
    params = model.params._replace(layers=model.params.layers[: sizes.sentence_layers])
    shape = (sizes.sentence_layers, model.config.num_heads)
    texts = sentences("validation", sizes.texts, sizes.sentences)
    per_sentence = minilm_scores(params, *tokenize(model, texts))

    def per_text(keep: np.ndarray) -> np.ndarray:
        return per_sentence(keep).reshape(2, sizes.texts, sizes.sentences).mean(-1)

    ids, lengths = tokenize(model, sentences("train", sizes.texts, 1))
    whole = jax.jit(minilm.embed)(params, ids, lengths)

    def distance(params: Any, gates: jax.Array, example: Any) -> jax.Array:
        ids, lengths, whole = example
        return 1 - jnp.mean(jnp.sum(minilm.embed(params, ids, lengths, gates=gates) * whole, -1))

    begun = time.monotonic()
    alone = np.asarray(
        jax.jit(partial(importance.ablation, distance))(
            params, jnp.ones(shape), (ids, lengths, whole)
        )
    )
    seconds = time.monotonic() - begun
    run.report("MiniLM, ablation")
    measure = partial(curve, per_text, removal_order(alone), counts_of(sizes, alone.size), shape)
    return {
        "importance": {"ablation": alone}, "seconds": {"ablation": seconds},
        "curves": {"ablation": run.once("MiniLM ablation", sizes, measure)},
    }  # fmt: skip


@experiment("pruning.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    return {
        "smollm2": of_smollm2(sizes, stored("heads.json"), run),
        "minilm": of_minilm(sizes, run),
    }
