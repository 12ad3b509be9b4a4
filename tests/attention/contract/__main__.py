"""Run the contract suite without pytest: ``python -m tests.attention.contract``.

Needs jax, numpy and jaxtyping, and the package, installed or in the folder ``src`` beside. The
cases come in a random order, so that any part of them is a fair sample.
"""

import argparse
import functools
import importlib.util
import random
import sys
import time
from pathlib import Path

if importlib.util.find_spec("mha_book") is None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

import jax

from mha_book.attention.dispatch import IMPLEMENTATIONS
from tests.attention.contract import cases, suite


def main(arguments: list[str] | None = None) -> int:
    """Run, print what fails and how many passed, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attention.contract", description=__doc__)
    names = list(IMPLEMENTATIONS)
    parser.add_argument("--implementation", choices=names, action="append", help="default: all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long at most")
    parser.add_argument("--cases-of-a-mask", type=int, default=4, help="default: 4")
    parser.add_argument("--skip", type=int, default=0, help="how many an earlier run had")
    options = parser.parse_args(arguments)
    draw = functools.partial(cases.pairwise, cases_of_a_mask=options.cases_of_a_mask)
    chosen = [case for name in options.implementation or names for case in draw(name)]
    random.Random(2017).shuffle(chosen)
    chosen = chosen[options.skip :]
    start, failed, worst, count = time.monotonic(), 0, 0.0, 0
    for case in chosen:
        if time.monotonic() - start > options.seconds:
            break
        outcome, count = suite.run(case), count + 1
        worst = max(worst, outcome.worst)
        if outcome.complaints:
            failed += 1
            print(f"FAILED {case.name}", *outcome.complaints, sep="\n  ", flush=True)
        if count % 500 == 0:
            jax.clear_caches()
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}: {count} of {len(chosen)} cases, "
          f"{failed} failed, worst error {worst:.2f} of its tolerance")  # fmt: skip
    return 1 if failed or not count else 0


if __name__ == "__main__":
    raise SystemExit(main())
