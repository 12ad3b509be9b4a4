"""Decoding: attention of one new token over a cache, against jax.nn and torch.

    PYTHONPATH=src python3 benchmarks/decode.py --quick

B sequences, N query heads, K key/value heads, S cached tokens of width H = C.  Three questions: how
long one step takes beside the peers and beside reading the cache once, how the time of a step grows
with S, and how it changes with K, beside a pass over many queries at once.  The rules are in
README.md beside this file.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import provenance
import report
from decode_cases import (
    BASELINE,
    CONTENDERS,
    READ,
    Contender,
    Setting,
    expected_of,
    inputs_of,
    model_step,
    reading,
    stepping,
)

__all__ = ["grow", "main", "measure", "share"]

TOLERANCE = 1e-5  # largest deviation from float64, relative to the largest entry


def _error(contender: Contender, output: Any, expected: np.ndarray) -> float:
    """The checked error of an output; of the sum that reads the cache none is asked."""
    if contender.name == READ:
        return 0.0
    got = np.asarray(output)
    got = np.swapaxes(got, 1, 2) if contender.layout == "BSKH" else got
    return harness.verify(contender.name, [got], [expected], TOLERANCE)


def measure(setting: Setting, contenders: Sequence[Contender], *, rounds: int) -> dict[str, Any]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again."""
    inputs = inputs_of(setting)
    expected = expected_of(inputs)
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[str, Callable[[], Any]] = {}
    known: dict[str, Contender] = {}
    for contender in contenders:
        name = contender.name
        identity = {key: getattr(contender, key) for key in ("name", "package", "layout", "remark")}
        if importlib.util.find_spec(contender.package) is None:
            reason = f"{contender.package} is not installed"
            rows[name] = {**identity, "status": "not measured", "reason": reason}
            continue
        run = contender.prepare(inputs)
        try:
            _error(contender, run(), expected)
        except harness.WrongOutput as wrong:
            if name == BASELINE:
                raise
            rows[name] = {**identity, "status": "refused", "reason": str(wrong)}
            continue
        rows[name] = {**identity, "status": "measured"}
        runs[name], known[name] = run, contender
    again = BASELINE + harness.SELF_PAIR_SUFFIX
    known[again] = known[BASELINE]
    rows[again] = {**rows[BASELINE], "name": again, "remark": "the A/A self-pair"}
    times = harness.interleave(
        harness.with_self_pair(runs, BASELINE),
        rounds=rounds,
        progress=report.progress_line(setting.label),
    )
    for name, seconds in times.seconds.items():
        ours, read = times.seconds[BASELINE], times.seconds[READ]
        measured = harness.timings(name, times, BASELINE)
        rows[name] |= {
            **measured,
            "cache_over_this": harness.summarise(harness.per_round_ratios(ours, seconds))._asdict(),
            "cache_bytes_per_s": setting.cache_bytes / measured["seconds"]["median"],
            "fraction_of_read_rate": harness.summarise(
                harness.per_round_ratios(read, seconds)
            ).median,
            "error": _error(known[name], times.outputs[name], expected),
        }
    order = [*(contender.name for contender in contenders), again]
    return {
        "case": {**setting._asdict(), "label": setting.label},
        "cache_bytes": setting.cache_bytes,
        "tolerance": TOLERANCE,
        "baseline": BASELINE,
        "rows": [rows[name] for name in order],
    }


def grow(
    prepare: Callable[[int], Callable[[], Any]], lengths: Sequence[int], *, rounds: int
) -> dict[str, Any]:
    """The time of a step against the cache length, and the straight line through the medians.

    Args:
        prepare: from a length, a function that runs one step.
        lengths: the lengths; all are timed in the same rounds.
        rounds: how many rounds.

    Returns:
        The raw times, the medians, `slope_s_per_token`, `intercept_s`, and `largest_residual`, the
        largest distance of a median from the line as a part of the line's value there.
    """
    runs = {str(length): prepare(length) for length in lengths}
    progress = report.progress_line("time against length")
    times = harness.interleave(runs, rounds=rounds, progress=progress)
    medians = [harness.summarise(times.seconds[str(length)]).median for length in lengths]
    slope, intercept = (float(x) for x in np.polyfit(lengths, medians, 1))
    fitted = slope * np.asarray(lengths) + intercept
    return {
        "lengths": list(lengths),
        "seconds_per_round": [times.seconds[str(length)] for length in lengths],
        "seconds": medians,
        "slope_s_per_token": slope,
        "intercept_s": intercept,
        "largest_residual": float((np.abs(np.asarray(medians) - fitted) / fitted).max()),
    }


def share(
    prepare: Callable[[Setting], Callable[[], Any]], setting: Setting, *, rounds: int
) -> dict[str, Any]:
    """The time against the number of key/value heads, all else equal.

    Args:
        prepare: from a setting, a function that runs once.
        setting: its `kv_heads` are replaced by every divisor of its query heads.
        rounds: how many rounds.

    Returns:
        The raw times, the medians and the bytes of the cache; `ratio` is to as many key/value as
        query heads, of the same round.
    """
    heads = setting.heads
    settings = [setting._replace(kv_heads=k) for k in range(1, heads + 1) if heads % k == 0]
    runs = {str(one.kv_heads): prepare(one) for one in settings}
    progress = report.progress_line("time against key/value heads")
    times = harness.interleave(runs, rounds=rounds, progress=progress).seconds
    ratios = {
        k: harness.per_round_ratios(seconds, times[str(heads)]) for k, seconds in times.items()
    }
    return {
        "case": setting._asdict(),
        "kv_heads": [one.kv_heads for one in settings],
        "cache_bytes": [one.cache_bytes for one in settings],
        "seconds_per_round": list(times.values()),
        "seconds": [harness.summarise(seconds).median for seconds in times.values()],
        "ratio": [harness.summarise(ratio)._asdict() for ratio in ratios.values()],
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of the comparison as aligned text."""
    lines = [f"{'':<20}{'keys':<6}{'ms':>9}{'ratio':>8}{'quartiles':>16}{'GB/s':>7}{'of read':>9}"]
    for row in rows:
        start = f"{row['name']:<20}{row['layout']:<6}"
        if row["status"] != "measured":
            lines.append(f"{start}{row['status']}: {row['reason']}")
            continue
        ratio = row["ratio"]
        quartiles = f"{ratio['lower_quartile']:.3f} to {ratio['upper_quartile']:.3f}"
        lines.append(
            f"{start}{row['seconds']['median'] * 1e3:9.2f}{ratio['median']:8.3f}{quartiles:>16}"
            f"{row['cache_bytes_per_s'] / 1e9:7.1f}{row['fraction_of_read_rate']:9.2f}"
        )
    return "\n".join(lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with the defaults that depend on --quick filled in."""
    parser = argparse.ArgumentParser(
        description="Decoding over a cache, against jax.nn and torch.",
        epilog="Ratios are to the cache's time of the same round; above 1 is slower.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, to see that all of it runs; not a result")
    add("--rounds", type=int, help="rounds (default 20, quick 4; even balances the order)")
    add("--only", nargs="+", metavar="TEXT", help="contenders whose name contains one of these")
    add("--model", action=argparse.BooleanOptionalAction, help="time SmolLM2 too (default: yes)")
    add("--out", type=Path, help="result file (default results/decode-PLATFORM.json)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (4 if options.quick else 20)
    options.model = (not options.quick) if options.model is None else options.model
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a contender was refused."""
    options = _options(arguments)
    origin = provenance.record()
    setting = Setting(64, 2, 6, 2, 16) if options.quick else Setting()
    always = (BASELINE, READ)
    chosen = [
        one
        for one in CONTENDERS
        if one.name in always or not options.only or any(t in one.name for t in options.only)
    ]
    found = measure(setting, chosen, rounds=options.rounds)
    print(f"{setting.label}, cache {setting.cache_bytes / 1e6:.0f} MB\n{_table(found['rows'])}")
    lengths = [setting.length * eighths // 8 for eighths in range(1, 9)]
    steps = {"attention": lambda n: stepping(inputs_of(setting._replace(length=n)))}
    if options.model:
        steps["SmolLM2"] = model_step
    growth = {name: grow(step, lengths, rounds=options.rounds) for name, step in steps.items()}
    for name, line in growth.items():
        print(
            f"{name}: {line['intercept_s'] * 1e3:.2f} ms + {line['slope_s_per_token'] * 1e9:.0f} ns"
            f" a cached token, largest residual {line['largest_residual']:.1%}"
        )
    shorter = setting._replace(length=setting.length // 4)
    prompt = shorter._replace(length=setting.length // 8, batch=1)
    sharing = {
        "decode": share(lambda one: stepping(inputs_of(one)), shorter, rounds=options.rounds),
        "prefill": share(reading, prompt, rounds=options.rounds),
    }
    for name, found_shared in sharing.items():
        ratios = ", ".join(
            f"{k}: {ratio['median']:.2f}"
            for k, ratio in zip(found_shared["kv_heads"], found_shared["ratio"], strict=True)
        )
        print(f"{name}, time over that of {setting.heads} key/value heads: {ratios}")
    distance = abs(found["rows"][-1]["ratio"]["median"] - 1)
    print("quiet enough" if distance <= report.QUIET else "too noisy a run to be committed")
    settings = {"rounds": options.rounds, "quick": options.quick, "dtype": "float32"}
    report.keep(
        "decode", options.out, origin, settings, cases=[found], growth=growth, sharing=sharing
    )
    return int(any(row["status"] == "refused" for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
