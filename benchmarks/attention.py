"""Attention: the package's implementations against jax.nn, Flax, Equinox and torch.

    PYTHONPATH=src python3 benchmarks/attention.py --quick

Prefill with B batch entries, N query heads, K key/value heads, T = S positions and width H = C:
forward, and forward with backward.  The rules are in README.md beside this file.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import peers
import provenance
import report
import rows
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
from options import parser_of, wanted

__all__ = ["main", "measure_case"]

LONG = 4096  # from here on few contenders; on a CPU, where a call takes seconds, few rounds
MASKS, PASSES = ("full", "causal"), ("forward", "backward")
LONG_ROUNDS = 6
ALONE = "blockwise"  # whose memory is measured where others have no room


def _memory(name: str, case: Case) -> dict[str, Any]:
    """Peak memory of one contender, from a process of its own."""
    return peak_memory("cases:prepare_row", {"name": name, "case": list(case)})


def measure_case(
    case: Case,
    contenders: Sequence[peers.Contender],
    *,
    rounds: int,
    matmul_size: int | None = None,
    with_memory: bool = False,
    baseline: str = peers.BASELINE,
) -> dict[str, Any]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again.

    A contender that is not installed, does not fit into memory or refuses to serve becomes a row
    "not measured", one with a wrong output a row "refused"; neither holds a number.

    Raises:
        WrongOutput: when the baseline itself is wrong; there is nothing to compare then.
    """
    inputs = inputs_of(case)
    expected = expected_of(case)
    pairs = visible_pairs(case.length, case.length, is_causal=case.is_causal) * case.batch
    flops = attention_flops(pairs, case.heads, case.head_dim, case.head_dim, backward=case.backward)
    rates = measure_rates(case.dtype, matmul_size=matmul_size)
    baseline, found, _ = rows.compare(
        contenders,
        prepare=lambda one: run_of(one, case, inputs),
        error=lambda one, outputs: checked_error(one, outputs, expected, case),
        numbers=lambda one, times: rows.rates_of(times["seconds"]["median"], flops, rates),
        baseline=baseline,
        rounds=rounds,
        label=case.label,
    )
    for row in found[:-1]:
        if with_memory and row["status"] == "measured":
            row["memory"] = _memory(row["name"], case)
    return {
        "case": {**case._asdict(), "label": case.label},
        "visible_pairs": pairs,
        "matmul_flops": flops,
        "tolerance": TOLERANCES[case.dtype],
        "checked": expected.checked,
        "rates": rates,
        "baseline": baseline,
        "rows": found,
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with the defaults that depend on --quick and the device filled in."""
    parser = parser_of(
        "attention",
        "Attention: the package's implementations against their peers.",
        unit="the baseline's",
        memory=True,
    )
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", help="sequence lengths (default 128 512 2048 8192)")
    add(
        "--alone",
        type=int,
        nargs="*",
        help=f"lengths of one causal forward call of {ALONE}, for its memory, neither timed nor "
        "checked (default 65536 with --memory)",
    )
    add("--batch", type=int, help="batch entries (default 1)")
    add("--heads", type=int, help="query heads (default 8, quick 2)")
    add("--kv-heads", type=int, help="key/value heads (default: as many as query heads)")
    add("--head-dim", type=int, nargs="+", help="widths of a head (default 64, quick 16)")
    add("--dtype", choices=sorted(TOLERANCES), default="float32", help="of inputs and outputs")
    add("--only", nargs="+", metavar="TEXT", help="contenders whose name contains one of these")
    add("--masks", nargs="+", choices=MASKS, help="default both; on a CPU, causal alone when long")
    add("--passes", nargs="+", choices=PASSES, default=PASSES, help="default both")
    add("--baseline", default=peers.BASELINE, help="whom the others are divided by")
    add(
        "--gpu-rows",
        action=argparse.BooleanOptionalAction,
        help="the rows that a GPU has besides (default: where there is one)",
    )
    options = parser.parse_args(arguments)
    on_gpu = jax.default_backend() == "gpu"
    options.gpu_rows = on_gpu if options.gpu_rows is None else options.gpu_rows
    options.rounds = options.rounds or (4 if options.quick else 20)
    options.lengths = options.lengths or ([32] if options.quick else [128, 512, 2048, 8192])
    options.head_dim = options.head_dim or [16 if options.quick else 64]
    options.heads = options.heads or (2 if options.quick else 8)
    options.memory = (not options.quick) if options.memory is None else options.memory
    if options.alone is None:
        options.alone = [65536] if options.memory and not options.quick else []
    return options


def _cases(options: argparse.Namespace) -> Iterator[tuple[Case, bool]]:
    """The settings, and for each whether a call of it takes seconds on this device."""
    for head_dim, length, mask, work in itertools.product(
        options.head_dim, options.lengths, MASKS, PASSES
    ):
        is_long = length >= LONG and jax.default_backend() == "cpu"
        masks = options.masks or (["causal"] if is_long else MASKS)
        if mask in masks and work in options.passes:
            yield (
                Case(
                    length,
                    mask == "causal",
                    work == "backward",
                    batch=options.batch or 1,
                    heads=options.heads,
                    head_dim=head_dim,
                    dtype=options.dtype,
                    kv_heads=options.kv_heads,
                ),
                is_long,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a contender was refused."""
    options = _options(arguments)
    origin = provenance.record()
    settings = {"rounds": options.rounds, "quick": options.quick, "dtype": options.dtype}
    cases = []
    for case, is_long in _cases(options):
        chosen = [
            one
            for one in peers.contenders(gpu=options.gpu_rows, long=case.length >= LONG)
            if one.name == options.baseline or wanted(one.name, options.only)
        ]
        found = measure_case(
            case,
            chosen,
            rounds=min(options.rounds, LONG_ROUNDS) if is_long else options.rounds,
            matmul_size=256 if options.quick else None,
            with_memory=options.memory and case.length == max(options.lengths),
            baseline=options.baseline,
        )
        cases.append(found)
        report.show(case.label, found)
        report.keep_so_far("attention", options.out, origin, settings, cases=cases)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    alone = []
    for length in options.alone:
        case = Case(length, is_causal=True, backward=False, heads=options.heads)
        alone.append({"case": case._asdict(), "name": ALONE, "memory": _memory(ALONE, case)})
        print(f"{ALONE} alone, {case.label}: {alone[-1]['memory']['peak_bytes'] / 2**20:.0f} MiB")
    report.keep("attention", options.out, origin, settings, cases=cases, alone=alone)
    return int(rows.any_refused(cases))


if __name__ == "__main__":
    sys.exit(main())
