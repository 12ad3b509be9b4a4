"""Attention: the package's implementations against jax.nn, Flax, Equinox and torch.

    PYTHONPATH=src python3 benchmarks/attention.py --quick

Prefill with B batch entries, N heads, T = S positions and width H = C: forward, and forward
with backward.  The rules are in README.md beside this file.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import peers
import provenance
import report
from cases import (
    TOLERANCES,
    Case,
    checked_error,
    expected_of,
    inputs_of,
    run_of,
)
from limits import attention_flops, measure_rates, visible_pairs
from memory import peak_memory

__all__ = ["main", "measure_case"]

LONG = 4096  # from here on: causal alone, few contenders, few rounds; a call takes seconds
LONG_ROUNDS = 6


def _memory(name: str, case: Case) -> dict[str, Any]:
    """Peak memory of one contender, from a process of its own."""
    return peak_memory("cases:prepare_row", {"name": name, "case": list(case)})


def _blank(contender: peers.Contender, status: str, reason: str) -> dict[str, Any]:
    """A row without numbers and why."""
    return {**_identity(contender), "status": status, "reason": reason}


def _identity(contender: peers.Contender) -> dict[str, Any]:
    """What a row says of its contender."""
    return {key: getattr(contender, key) for key in ("name", "package", "layout", "remark")}


def _timings(name: str, times: harness.Times, flops: int, matmul_rate: float) -> dict[str, Any]:
    """The numbers of one row: raw times, their summary, ratios, rates."""
    measured = harness.timings(name, times, peers.BASELINE)
    rate = flops / measured["seconds"]["median"]
    return {**measured, "flops_per_s": rate, "fraction_of_matmul_rate": rate / matmul_rate}


def measure_case(
    case: Case,
    contenders: Sequence[peers.Contender],
    *,
    rounds: int,
    matmul_size: int = 2048,
    with_memory: bool = False,
) -> dict[str, Any]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again.

    A contender that is not installed or refuses to serve becomes a row "not measured", one
    with a wrong output a row "refused"; neither holds a number.

    Raises:
        WrongOutput: when the baseline itself is wrong; there is nothing to compare then.
    """
    inputs = inputs_of(case)
    expected = expected_of(case, inputs)
    rows, runs, errors, known = {}, {}, {}, {}
    for contender in contenders:
        if (reason := peers.missing_package(contender)) is not None:
            rows[contender.name] = _blank(contender, "not measured", reason)
            continue
        run = run_of(contender, case, inputs)
        try:
            errors[contender.name] = checked_error(contender, run(), expected, case)
        except NotImplementedError as refusal:
            rows[contender.name] = _blank(contender, "not measured", str(refusal))
        except harness.WrongOutput as wrong:
            if contender.name == peers.BASELINE:
                raise
            rows[contender.name] = _blank(contender, "refused", str(wrong))
        else:
            runs[contender.name], known[contender.name] = run, contender
    again = peers.BASELINE + harness.SELF_PAIR_SUFFIX
    known[again] = known[peers.BASELINE]._replace(name=again, remark="the A/A self-pair")
    rates = measure_rates(case.dtype, matmul_size=matmul_size)
    times = harness.interleave(
        harness.with_self_pair(runs, peers.BASELINE),
        rounds=rounds,
        progress=report.progress_line(case.label),
    )
    pairs = visible_pairs(case.length, case.length, is_causal=case.is_causal) * case.batch
    flops = attention_flops(pairs, case.heads, case.head_dim, case.head_dim, backward=case.backward)
    for name, outputs in times.outputs.items():
        error = checked_error(known[name], outputs, expected, case)
        numbers = _timings(name, times, flops, float(rates["matmul_flops_per_s"]))
        measured = {"status": "measured", "error": max(error, errors.get(name, 0.0)), **numbers}
        rows[name] = {**_identity(known[name]), **measured}
        if with_memory and name != again:
            rows[name]["memory"] = _memory(name, case)
    order = [*(contender.name for contender in contenders), again]
    return {
        "case": {**case._asdict(), "label": case.label},
        "visible_pairs": pairs,
        "matmul_flops": flops,
        "tolerance": TOLERANCES[case.dtype],
        "rates": rates,
        "baseline": peers.BASELINE,
        "rows": [rows[name] for name in order],
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with the defaults that depend on --quick filled in."""
    parser = argparse.ArgumentParser(
        description="Attention: the package's implementations against their peers.",
        epilog="Ratios are to the reference's time of the same round; above 1 is slower.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, to see that all of it runs; not a result")
    add("--rounds", type=int, help="rounds a case (default 20, quick 4; even balances the order)")
    add("--lengths", type=int, nargs="+", help="sequence lengths (default 128 512 2048 8192)")
    add("--dtype", choices=sorted(TOLERANCES), default="float32", help="of inputs and outputs")
    add("--only", nargs="+", metavar="TEXT", help="contenders whose name contains one of these")
    add(
        "--out",
        type=Path,
        help="result file (default results/attention-PLATFORM.json beside "
        "this script; with --quick nothing is written unless this is given)",
    )
    add(
        "--memory",
        action=argparse.BooleanOptionalAction,
        help="measure peak memory at the longest length (default yes, with --quick no)",
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (4 if options.quick else 20)
    options.lengths = options.lengths or ([32] if options.quick else [128, 512, 2048, 8192])
    options.memory = (not options.quick) if options.memory is None else options.memory
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a contender was refused."""
    options = _options(arguments)
    origin = provenance.record()
    shape = {"heads": 2, "head_dim": 16} if options.quick else {}
    chosen = [
        one
        for one in peers.CONTENDERS
        if one.name == peers.BASELINE
        or not options.only
        or any(text in one.name for text in options.only)
    ]
    cases = []
    for length, causal, backward in itertools.product(
        options.lengths, (False, True), (False, True)
    ):
        is_long = length >= LONG
        if is_long and not causal:
            continue
        case = Case(length, causal, backward, dtype=options.dtype, **shape)
        found = measure_case(
            case,
            [one for one in chosen if not is_long or one.name in peers.LONG],
            rounds=min(options.rounds, LONG_ROUNDS) if is_long else options.rounds,
            matmul_size=256 if options.quick else 2048,
            with_memory=options.memory and length == max(options.lengths),
        )
        cases.append(found)
        print(f"{case.label}, {found['rates']['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s matmul")
        print(report.table(found["rows"]), end="\n\n", flush=True)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    settings = {"rounds": options.rounds, "quick": options.quick, "dtype": options.dtype}
    report.keep("attention", options.out, origin, settings, cases=cases)
    return int(any(row["status"] == "refused" for case in cases for row in case["rows"]))


if __name__ == "__main__":
    sys.exit(main())
