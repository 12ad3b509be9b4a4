"""The paired timer: interleaved samples, per-round ratios, order statistics.

Times taken one after another on a machine that does other things cannot be compared: the
clock frequency, the caches and the neighbors change meanwhile.  Here every contender runs
once in each round, the order of the rounds alternates, and only times of the *same round*
are divided by each other.  The baseline also runs against itself; the spread of that
self-pair is the smallest difference the run can resolve.
"""

import gc
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

# On a machine that others use too, the processor's time of this process, all threads together,
# says more than the time on the wall.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
SELF_PAIR_SUFFIX = " (again)"
# Before a sample there is a rest, since threads of the one before may still spin on the same cores;
# and, where a call is brief, one call that is not timed: caches and threads are cold after it.
REST, BRIEF = 0.02, 0.1  # seconds
CALM = 0.05  # how far the self-pair's median may lie from 1 before more rounds are taken
MOST = 3  # times the rounds asked for, at most

Run = Callable[[], Any]


class Summary(NamedTuple):
    """Order statistics of a sample; nothing is fitted, trimmed or assumed."""

    median: float
    lower_quartile: float
    upper_quartile: float
    minimum: float
    maximum: float


class Times(NamedTuple):
    """What `interleave` measured of each contender."""

    seconds: dict[str, list[float]]  # per call, one number for each round
    calls: dict[str, int]  # how many a sample averages over
    outputs: dict[str, Any]  # of its last timed call


def finished(output: Any) -> Any:
    """Waits until an output has been computed, by JAX or by torch on a GPU, and returns it."""
    if any(getattr(leaf, "is_cuda", False) for leaf in jax.tree.leaves(output)):
        sys.modules["torch"].cuda.synchronize()
    return jax.block_until_ready(output)


def summarize(values: Sequence[float]) -> Summary:
    """Median, quartiles (linear interpolation) and range of a sample."""
    if not values:
        raise ValueError("values: expected at least one number, got none")
    lower, median, upper = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return Summary(median, lower, upper, float(min(values)), float(max(values)))


def per_round_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Each round's time divided by the baseline's time of the same round (above 1: slower)."""
    if len(seconds) != len(baseline):
        raise ValueError(
            f"seconds, baseline: expected one time a round in both, "
            f"got {len(seconds)} and {len(baseline)} rounds"
        )
    return [ours / theirs for ours, theirs in zip(seconds, baseline, strict=True)]


def timings(name: str, times: Times, baseline: str) -> dict[str, Any]:
    """What a row of a result holds of its times: raw, summarized, and against the baseline's."""
    seconds = times.seconds[name]
    ratios = per_round_ratios(seconds, times.seconds[baseline])
    return {
        "calls_per_sample": times.calls[name], "seconds_per_round": seconds,
        "seconds": summarize(seconds)._asdict(), "ratio": summarize(ratios)._asdict(),
    }  # fmt: skip


def with_self_pair(contenders: Mapping[str, Run], baseline: str) -> dict[str, Run]:
    """The contenders with the baseline first and once more at the end, the A/A pair."""
    others = {name: run for name, run in contenders.items() if name != baseline}
    again = {baseline + SELF_PAIR_SUFFIX: contenders[baseline]}
    return {baseline: contenders[baseline], **others, **again}


def _sample(run, calls, clock, wait, wait_for_each=True) -> tuple[float, Any]:
    """Seconds per call over `calls` calls, each or the last waited for, and the last output."""
    output = None
    start = clock()
    for _ in range(calls):
        output = wait(run()) if wait_for_each else run()
    output = output if wait_for_each else wait(output)
    return (clock() - start) / calls, output


def _calm(seconds: Mapping[str, Sequence[float]]) -> bool:
    """Whether those that are timed twice agree with themselves."""
    pairs = [
        per_round_ratios(seconds[name], seconds[name.removesuffix(SELF_PAIR_SUFFIX)])
        for name in seconds
        if name.endswith(SELF_PAIR_SUFFIX)
    ]
    return all(abs(summarize(ratios).median - 1) <= CALM for ratios in pairs)


def interleave(
    contenders,
    *,
    rounds,
    shortest_sample=0.01,
    clock=time.perf_counter,
    wait=finished,
    wait_for_each=None,
    progress=None,
) -> Times:
    """Times every contender once in each round, in alternating order; `rounds` is best even.

    Where a contender stands beside itself (`with_self_pair`) and the medians of the two differ,
    as many rounds again are added, and all are kept: neighbors on the machine cost time, not
    truth.

    Each contender is called twice before the first round: the first call compiles, the
    second tells how many calls a sample needs to last `shortest_sample` seconds.  The
    garbage collector is off while the clock runs.  Each call of a sample is waited for on a CPU,
    the last one alone on a GPU, which works off its calls in order: waiting between them would
    measure the way there and back.
    """
    if rounds < 1:
        raise ValueError(f"rounds: expected at least 1, got {rounds}")
    each = jax.default_backend() == "cpu" if wait_for_each is None else wait_for_each
    calls: dict[str, int] = {}
    brief = set()
    for name, run in contenders.items():
        wait(run())
        calls[name] = 1
        for _ in range(1 if each else 2):  # what one call took alone is too long without waiting
            once, _ = _sample(run, calls[name], clock, wait, each)
            calls[name] = max(1, math.ceil(shortest_sample / once)) if once > 0 else 1
        if once < BRIEF:
            brief.add(name)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    outputs: dict[str, Any] = {}
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        index, last = 0, rounds
        while index < last:
            for name in list(contenders)[:: -1 if index % 2 else 1]:
                time.sleep(REST)
                if name in brief:
                    wait(contenders[name]())
                elapsed, output = _sample(contenders[name], calls[name], clock, wait, each)
                seconds[name].append(elapsed)
                if index == last - 1:
                    outputs[name] = output
                del output
            index += 1
            if progress is not None:
                progress(index, last)
            if index == last < MOST * rounds and not _calm(seconds):
                last += rounds
    finally:
        if collecting:
            gc.enable()
    return Times(seconds, calls, outputs)
