"""The options that the benchmarks share."""

import argparse
import time
from pathlib import Path

__all__ = ["CLOCKS", "parser_of", "wanted"]

# On a machine that others use too, the processor's time of this process, all threads together,
# says more than the time on the wall.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def parser_of(
    benchmark: str,
    description: str,
    *,
    unit: str,
    rounds: str = "default 20, quick 4",
    memory: bool = False,
    clock: bool = False,
) -> argparse.ArgumentParser:
    """A parser with --quick, --rounds and --out.

    Args:
        benchmark: its name, as in the name of its result.
        description: what it measures.
        unit: whose time the ratios are to.
        rounds: what --rounds is unless it is given.
        memory: whether there is a --memory.
        clock: whether there is a --clock.
    """
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"Ratios are to {unit} time of the same round; above 1 is slower.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, to see that all of it runs; not a result")
    add("--rounds", type=int, help=f"rounds a case ({rounds}; even balances the order)")
    add(
        "--out",
        type=Path,
        help=f"result file (default results/{benchmark}-PLATFORM.json beside this script; "
        "with --quick nothing is written unless this is given)",
    )
    if memory:
        add(
            "--memory",
            action=argparse.BooleanOptionalAction,
            help="measure peak memory at the longest length (default yes, with --quick no)",
        )
    if clock:
        add("--clock", choices=sorted(CLOCKS), default="wall", help="what a second is (wall)")
    return parser


def wanted(name: str, texts: list[str] | None) -> bool:
    """Whether --only TEXT… asks for a contender; without it all are.

    Example:
        >>> wanted("jax.nn, converted", ["torch", "jax.nn"])
        True
    """
    return not texts or any(text in name for text in texts)
