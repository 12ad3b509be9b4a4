"""Decoding: attention of one new token over a cache, against jax.nn and torch.

    PYTHONPATH=src python3 benchmarks/decode.py --quick

B sequences, N query heads, K key/value heads, S cached tokens of width H = C.  Three questions: how
long one step takes beside the peers and beside reading the cache once, how the time of a step grows
with S, and how it changes with K, beside a pass over many queries at once.  The rules are in
README.md beside this file.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import harness
import numpy as np
import provenance
import report
import rows
from cases import TOLERANCES
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
from limits import measure_rates
from options import parser_of, wanted

__all__ = ["grow", "main", "measure", "share"]


def _error(contender: Contender, output: Any, expected: np.ndarray, tolerance: float) -> float:
    """The checked error of an output; of the sum that reads the cache none is asked."""
    if contender.name == READ:
        return 0.0
    got = harness.as_numpy(output)
    got = np.swapaxes(got, 1, 2) if contender.layout == "BSKH" else got
    return harness.verify(contender.name, [got], [expected], tolerance)


def measure(
    setting: Setting,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    matmul_size: int | None = None,
    copy_mib: int | None = None,
) -> dict[str, Any]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again."""
    inputs = inputs_of(setting)
    expected, tolerance = expected_of(inputs), TOLERANCES[setting.dtype]
    rates = measure_rates(setting.dtype, matmul_size=matmul_size, copy_mib=copy_mib)

    def numbers(contender: Contender, measured: dict[str, Any]) -> dict[str, Any]:
        rate = setting.cache_bytes / measured["seconds"]["median"]
        return {
            "cache_bytes_per_s": rate,
            "fraction_of_stream_rate": rate / rates["stream_bytes_per_s"],
        }

    baseline, found, times = rows.compare(
        contenders,
        prepare=lambda one: one.prepare(inputs),
        error=lambda one, output: _error(one, output, expected, tolerance),
        numbers=numbers,
        baseline=BASELINE,
        rounds=rounds,
        label=setting.label,
    )
    ours, read = times.seconds[baseline], times.seconds[READ]
    for row in found:
        if row["status"] == "measured":
            seconds = row["seconds_per_round"]
            ratios = harness.per_round_ratios(ours, seconds)
            row["cache_over_this"] = harness.summarise(ratios)._asdict()
            fractions = harness.per_round_ratios(read, seconds)
            row["fraction_of_read_rate"] = harness.summarise(fractions).median
    return {
        "case": {**setting._asdict(), "label": setting.label},
        "cache_bytes": setting.cache_bytes,
        "tolerance": tolerance,
        "rates": rates,
        "baseline": baseline,
        "rows": found,
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


def _table(found: Sequence[dict[str, Any]]) -> str:
    """The rows of the comparison as aligned text."""
    lines = [f"{'':<20}{'keys':<6}{'ms':>9}{'ratio':>8}{'quartiles':>16}{'GB/s':>7}{'of read':>9}"]
    for row in found:
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
    parser = parser_of(
        "decode", "Decoding over a cache, against jax.nn and torch.", unit="the cache's"
    )
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", help="cached tokens (default 8192, quick 64)")
    add("--batch", type=int, help="sequences (default 8, quick 2)")
    add("--dtype", choices=sorted(TOLERANCES), default="float32", help="of the cache")
    add("--only", nargs="+", metavar="TEXT", help="contenders whose name contains one of these")
    add("--model", action=argparse.BooleanOptionalAction, help="time SmolLM2 too (default: yes)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (4 if options.quick else 20)
    options.model = (not options.quick) if options.model is None else options.model
    return options


def _settings(options: argparse.Namespace) -> list[Setting]:
    """One setting for each length of the cache."""
    usual = Setting(64, 2, 6, 2, 16) if options.quick else Setting()
    given = usual._replace(batch=options.batch or usual.batch, dtype=options.dtype)
    return [given._replace(length=length) for length in options.lengths or [usual.length]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a contender was refused."""
    options = _options(arguments)
    origin = provenance.record()
    chosen = [
        one for one in CONTENDERS if one.name in (BASELINE, READ) or wanted(one.name, options.only)
    ]
    sizes = {"matmul_size": 256, "copy_mib": 4} if options.quick else {}
    settings = {"rounds": options.rounds, "quick": options.quick, "dtype": options.dtype}
    cases = []
    for setting in _settings(options):
        found = measure(setting, chosen, rounds=options.rounds, **sizes)
        print(f"{setting.label}, cache {setting.cache_bytes / 1e6:.0f} MB\n{_table(found['rows'])}")
        cases.append(found)
        report.keep_so_far("decode", options.out, origin, settings, cases=cases)
    setting = _settings(options)[0]
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
    print(f"self-pair medians: {report.self_pairs(cases)}")
    report.keep(
        "decode", options.out, origin, settings, cases=cases, growth=growth, sharing=sharing
    )
    return int(rows.any_refused(cases))


if __name__ == "__main__":
    sys.exit(main())
