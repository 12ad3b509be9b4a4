"""What is computed again is drawn by the commit: who forges a row can't know which it will be.

It is the slow tests that draw, of one commit in six each file; the fast ones hold every number to
git's history (``test_history``).
How likely a forged row is drawn within twenty commits, and how long all rows take: ``python -m
tests.stored.chance``. What some commits draw: ``python -m tests.stored.chance HASH ...``.
"""

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from accelerators import Program, plan
from experiments import cache_bits, dropout, papers, positions, scale
from tests.stored.files import result
from tests.turns import STORED_TURNS, commit

COMMITS = 20


class Draw(NamedTuple):
    """Rows of a file: which there are, how many the slow tests draw, and its cost."""

    file: str
    rows: Callable[[], Iterable[Any]]
    count: int
    seconds: float  # a row, on one core, what is compiled once left out


def drawn(what: str, count: int, among: Iterable[Any] | None = None, at: str = "") -> list[Any]:
    """As many rows as ``count``, all if there are fewer, in their order."""
    every = [*(DRAWS[what].rows() if among is None else among)]
    seed = hashlib.sha256(f"{at or commit()} {what}".encode()).digest()
    rng = np.random.default_rng([*seed])
    chosen = rng.choice(len(every), min(count, len(every)), replace=False)
    return [every[place] for place in sorted(chosen.tolist())]


def points(name: str, but: str = "^$") -> list[tuple[str, int]]:
    """Every point of the curves of a file that pages show: its curve, and the place there."""
    curves = result(name)["smollm2"]["curves"]
    shown = [curve for curve in curves if not re.search(but, curve)]
    return [(curve, n) for curve in shown for n in range(len(curves[curve]["heads"]))]


def shared() -> Iterable[tuple[str, int]]:
    """Forms and seeds of shared heads.

    One form is never drawn: from step 300 on the rounding of "1, parameters" grows, and on a CPU
    with AVX-512 it is off by 0.029.
    """
    forms = [form for form in result("sharing.json")["scratch"] if form != "1, parameters"]
    return itertools.product(forms, range(5))


def programs(most: int) -> list[int]:
    """Programs for v6e that compiled so fast; those for v5e and v5p are of an older package."""
    return [
        place
        for place, row in enumerate(result("compiled-v6e.json")["programs"])
        if row["status"] == "compiled"
        and Program(**row["program"]) in plan("v6e")
        and row["program"]["part"] == "attention"
        and row["seconds"] < most
        and None not in row["operations"].values()  # those of one were not counted
    ]


UNSHOWN = "layer|group|taylor|norm"  # curves of pruning.json
DRAWS = {
    "ablation": Draw("heads.json", lambda: np.ndindex(30, 9), 60, 0.7),
    "curves": Draw("pruning.json", lambda: points("pruning.json", UNSHOWN), 99, 0.4),
    "sentences": Draw("pruning.json", lambda: range(6), 2, 1),
    "without a head": Draw("pruning.json", lambda: np.ndindex(6, 12), 24, 0.2),
    "texts": Draw("pruning.json", lambda: range(24), 6, 1),
    "alike": Draw("pruning-alike.json", lambda: points("pruning-alike.json"), 12, 1),
    "before training": Draw("gates.json", lambda: range(24), 6, 0.5),
    "moved": Draw("quantization.json", lambda: range(10), 3, 3),
    "cache": Draw("cache-bits.json", lambda: range(cache_bits.TEXTS), 4, 8),
    "few keys": Draw("papers.json", lambda: range(6), 3, 2),
    "heads of a token": Draw("papers.json", lambda: papers.Sizes().heads, 1, 20),
    "entropy": Draw("papers.json", lambda: papers.Sizes().removed, 1, 20),
    "positions": Draw(
        "positions.json", lambda: itertools.product(positions.SCHEMES, range(3)), 1, 400
    ),
    "restart": Draw(
        "positions.json", lambda: ((t, p) for t in range(3) for p in range(2 if t == 2 else 4)),
        10, 4,
    ),
    "nudges": Draw(
        "emergence.json", lambda: itertools.product(("place", "content", "random"), range(16)),
        48, 0.5,
    ),
    "dropout": Draw(
        "gradients-dropout.json",
        lambda: itertools.product(("whole text", "scarce text"), dropout.SETTINGS), 5, 10,
    ),
    "shared curve": Draw("sharing.json", shared, 12, 5),
    "scale": Draw(
        "scale.json", lambda: itertools.product(scale.ARMS, scale.Sizes().widths, range(8)),
        18, 1.5,
    ),
    "closed": Draw("explorer.json", lambda: np.ndindex(30, 9), 45, 0.5),  # in each
    "compiled": Draw("compiled-v6e.json", lambda: programs(60), 9, 6),
}  # fmt: skip


def main(commits: list[str]) -> None:
    """Print what these commits draw, or how likely a forged row is drawn within twenty."""
    for name, draw in DRAWS.items():
        rows = [*draw.rows()]
        for at in commits:
            print(at[:8], name, drawn(name, draw.count, rows, at))
        if not commits:
            count, some = len(rows), min(draw.count, len(rows))
            print(
                f"{draw.file:30} {name:18} {count:4} rows, {some:3} drawn: "
                f"{1 - (1 - some / count / STORED_TURNS) ** COMMITS:4.0%}; "
                f"all of them {count * draw.seconds / 60:4.1f} min"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
