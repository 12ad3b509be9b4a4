"""Run the contract suite without pytest: ``python -m tests.attention.contract [--full]``.

Needs jax, numpy and jaxtyping, and the package, installed or in the folder ``src`` beside.
"""

import argparse
import importlib.util
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

if importlib.util.find_spec("mha_book") is None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

import jax

from mha_book.attention.dispatch import IMPLEMENTATIONS
from tests.attention.contract import cases, suite
from tests.attention.contract.cases import Case
from tests.attention.contract.suite import Outcome


def run(case: Case) -> Outcome:
    """Run one case; an error is a failure with the error's last lines."""
    try:
        return suite.run(case)
    except Exception:
        words = traceback.format_exc(limit=-3)
        return Outcome(case, False, float("inf"), (f"raised\n{words}",))


def table(outcomes: list[Outcome]) -> str:
    """One line for each implementation and dtype."""
    line = "{:<14} {:<10} {:>7} {:>7} {:>7}  {}".format
    lines = [line("implementation", "dtype", "served", "refused", "failed", "error/tolerance")]
    for name in dict.fromkeys(outcome.case.implementation for outcome in outcomes):
        for dtype in cases.DTYPES:
            some = [o for o in outcomes if (o.case.implementation, o.case.dtype) == (name, dtype)]
            refused = sum(outcome.refused for outcome in some)
            failed = sum(bool(outcome.complaints) for outcome in some)
            worst = max((outcome.worst for outcome in some), default=0.0)
            ratio = f"{worst:.2f}" if refused < len(some) else "-"
            lines.append(line(name, dtype, len(some) - refused, refused, failed, ratio))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attention.contract", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the full product (pairwise otherwise)")
    parser.add_argument(
        "--implementation", choices=list(IMPLEMENTATIONS), action="append", help="default: all"
    )
    options = parser.parse_args(arguments)
    chosen: list[Case] = []
    for name in options.implementation or IMPLEMENTATIONS:
        some: Iterable[Case] = cases.product(name) if options.full else cases.pairwise(name)
        chosen += some
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}, {len(chosen)} cases", flush=True)
    outcomes, start = [], time.perf_counter()
    for number, case in enumerate(chosen, 1):
        outcomes.append(run(case))
        if sys.stdout.isatty():
            print(f"\r{number}/{len(chosen)}  {case.name:<110.110}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r" + " " * 130, end="\r")
    for outcome in outcomes:
        if outcome.complaints:
            print(f"FAILED {outcome.case.implementation}: {outcome.case.name}")
            print("\n".join(f"  {complaint}" for complaint in outcome.complaints))
    failed = sum(bool(outcome.complaints) for outcome in outcomes)
    print(table(outcomes))
    took = time.perf_counter() - start
    print(f"{len(outcomes) - failed} passed, {failed} failed in {took:.0f} s")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main())
