"""What the programs that try inputs nobody meant have in common: their options, processes, result.

Each of them has a function ``run(seconds, seed, most)`` that tries as many inputs as fit, raises at
the first that breaks its contract, and returns a :class:`Found`.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.provenance import record
from mha_book.storage import seal, write_atomic

__all__ = ["Found", "main"]


class Found(NamedTuple):
    """What a run saw.

    Args:
        counts: how many of each kind.
        slowest_ms: the longest time of one input, of the processor.
        slowest: that input.
        peak_MB: the most memory that the process had.
    """

    counts: Counter[str]
    slowest_ms: int
    slowest: str
    peak_MB: int


def main(
    run: Callable[[float, int, int], Found], what: str, given: list[str] | None = None
) -> None:
    """Read the command line, run it in one or several processes, and print or store what it saw."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--seconds", type=float, default=600, help="how long at most; 0 for ever")
    parser.add_argument("--inputs", type=int, default=10**9, help="how many at most, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the first process; then the next")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where to store it, with its provenance")
    options = parser.parse_args(given)
    origin, start = record(), time.monotonic()
    seeds = range(options.seed, options.seed + options.processes)
    each = [options.inputs // options.processes] * options.processes
    each[0] += options.inputs % options.processes
    seconds = [options.seconds or math.inf] * options.processes
    if options.processes == 1:
        found = [run(seconds[0], seeds[0], each[0])]
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.processes, context) as pool:
            found = list(pool.map(run, seconds, seeds, each))
    counts = sum((one.counts for one in found), Counter[str]())
    slowest = max(found, key=lambda one: one.slowest_ms)
    result = {
        "counts": dict(sorted(counts.items())),
        "slowest_ms": slowest.slowest_ms,
        "slowest": slowest.slowest,
        "peak_MB": max(one.peak_MB for one in found),
        "wall_seconds": round(time.monotonic() - start),
        "processes": options.processes,
    }
    print(json.dumps(result, indent=1))
    if options.output is not None:
        document = seal({"provenance": {**origin, "seeds": list(seeds)}, **result})
        write_atomic(options.output, (json.dumps(document, indent=1) + "\n").encode())
