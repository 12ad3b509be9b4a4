"""What is computed again is drawn by the commit: who forges a row can't know which it will be.

The fast tests draw a few rows of each file, the slow ones about ten times as many. How likely a
forged row is drawn within twenty commits: ``python -m tests.stored.chance``.
"""

import functools
import hashlib
import subprocess
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.stored.files import ROOT

COMMITS = 20


@functools.cache
def commit() -> str:
    """The commit of this checkout; without git, the empty string."""
    run = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return run.stdout.strip()


def drawn(what: str, among: Iterable[Any], count: int) -> list[Any]:
    """As many of these as ``count``, all if there are fewer, in their order."""
    every = [*among]
    seed = hashlib.sha256(f"{commit()} {what}".encode()).digest()
    rng = np.random.default_rng([*seed])
    chosen = rng.choice(len(every), min(count, len(every)), replace=False)
    return [every[place] for place in sorted(chosen.tolist())]


# file: what a row is, how many there are, how many the fast and the slow tests draw at a commit
ROWS = {
    "heads.json": ("ablations", 270, 2, 30),
    "heads-smollm2.csv": ("heads; the fast ones are of the first layers", 270, 18, 270),
    "heads-minilm.csv": ("heads", 72, 72, 72),
    "pruning.json": ("points of curves", 42, 5, 42),
    "pruning.json, texts": ("texts of a point", 24, 6, 6),
    "pruning-alike.json": ("points of curves", 34, 0, 8),
    "gates.json": ("losses before training", 24, 3, 3),
    "quantization.json": ("draws of the weights", 10, 0, 2),
    "heads-in-use.json": ("senders", 15, 2, 2),
    "later-senders.json": ("sets of senders", 4, 2, 2),
    "circuit.json": ("patched heads", 270, 3, 3),
    "cache-bits.json": ("texts", 12, 0, 2),
    "papers.json": ("passages of a query's keys", 6, 0, 1),
    "papers.json, orders": ("shares of removed heads", 2, 0, 1),
    "positions.json": ("texts and schemes, to 10,240 tokens of 32,768", 9, 0, 1),
    "sinks.json": ("ways and texts", 144, 12, 20),
    "sinks-training.json": ("forms", 4, 2, 4),
    "emergence.json": ("nudged heads", 48, 2, 48),
    "gradients-dropout.json": ("trainings", 12, 0, 5),
    "sharing.json": ("curves of the first seed, but one", 6, 1, 2),
    "coverage.json": ("populations and sizes", 12, 2, 2),
    "scale.json": ("arms, widths and seeds", 72, 2, 9),
    "explorer.json": ("maps of a sentence", 12, 0, 12),
    "explorer.json, closed": ("heads that are closed", 270, 0, 1),
}


def main() -> None:
    """Print how likely a forged row is drawn within twenty commits."""
    for name, (what, rows, fast, slow) in ROWS.items():
        share = [1 - (1 - count / rows) ** COMMITS for count in (fast, max(fast, slow))]
        print(f"{name:24} {rows:4} {what:44} {fast:3} {slow:3}  {share[0]:4.0%} {share[1]:4.0%}")


if __name__ == "__main__":
    main()
