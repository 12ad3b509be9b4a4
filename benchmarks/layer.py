"""The whole layer, from x to the output: the package's against Flax's, Equinox's and torch's.

    PYTHONPATH=src python3 benchmarks/layer.py --quick

Every layer has the same weights, without biases; forward, and forward with the gradients of the
input and of all weights.  The rules are in README.md beside this file.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import layer_peers
import provenance
import report
import rows
from cases import TOLERANCES
from layer_cases import BASELINE, Contender, Setting, checked_error, expected_of, inputs_of, run_of
from limits import attention_flops, measure_rates, visible_pairs
from memory import peak_memory
from options import parser_of, wanted

__all__ = ["flops_of", "main", "measure"]

LONG = 4096  # from here on a call takes seconds on a CPU: causal alone, few rounds, few rows
LONG_ROUNDS = 4
LONG_ROWS = (BASELINE, "attend", "jax.nn", "torch", "torch SDPA")


def flops_of(setting: Setting) -> int:
    """Matmul FLOPs: four projections, attention over the visible pairs; three times that backward.

    Example:
        >>> flops_of(Setting(3, False, False, d_model=4, heads=2))
        528
    """
    pairs = visible_pairs(setting.length, setting.length, is_causal=setting.is_causal)
    width = setting.d_model // setting.heads
    one = attention_flops(pairs, setting.heads, width, width, backward=setting.backward)
    passes = 3 if setting.backward else 1
    return setting.batch * (one + passes * 4 * 2 * setting.length * setting.d_model**2)


def measure(
    setting: Setting,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    matmul_size: int | None = None,
    with_memory: bool = False,
    baseline: str = BASELINE,
) -> dict[str, Any]:
    """All layers in one setting: checked, timed in interleaved rounds, checked again."""
    inputs = inputs_of(setting)
    checked, pieces = expected_of(setting, inputs)
    flops, rates = flops_of(setting), measure_rates(setting.dtype, matmul_size=matmul_size)
    baseline, found, _ = rows.compare(
        contenders,
        prepare=lambda one: run_of(one, setting, inputs),
        error=lambda one, outputs: checked_error(one, outputs, pieces, setting),
        numbers=lambda one, times: rows.rates_of(times["seconds"]["median"], flops, rates),
        baseline=baseline,
        rounds=rounds,
        label=setting.label,
    )
    for row in found[:-1]:
        if with_memory and row["status"] == "measured":
            target = {"name": row["name"], "setting": list(setting)}
            row["memory"] = peak_memory("layer_cases:prepare_row", target)
    return {
        "case": {**setting._asdict(), "label": setting.label},
        "matmul_flops": flops,
        "tolerance": 2 * TOLERANCES[setting.dtype],
        "checked": checked,
        "rates": rates,
        "baseline": baseline,
        "rows": found,
    }


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with the defaults that depend on --quick filled in."""
    parser = parser_of(
        "layer",
        "The whole layer: the package's against Flax's, Equinox's and torch's.",
        unit="the baseline's",
        memory=True,
    )
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", help="sequence lengths (default 512 2048)")
    add("--long", action="store_true", help="8192 too, causal alone")
    add("--batch", type=int, default=1, help="batch entries (default 1)")
    add("--d-model", type=int, help="width of the model (default 512, quick 32)")
    add("--heads", type=int, help="heads (default 8, quick 2)")
    add("--dtype", choices=sorted(TOLERANCES), default="float32", help="of inputs and weights")
    add("--only", nargs="+", metavar="TEXT", help="contenders whose name contains one of these")
    add("--baseline", default=BASELINE, help="whom the others are divided by")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (4 if options.quick else 20)
    options.lengths = options.lengths or ([32] if options.quick else [512, 2048])
    options.lengths += [8192] if options.long else []
    options.d_model = options.d_model or (32 if options.quick else 512)
    options.heads = options.heads or (2 if options.quick else 8)
    options.memory = (not options.quick) if options.memory is None else options.memory
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a contender was refused."""
    options = _options(arguments)
    origin = provenance.record()
    platform = jax.default_backend()
    chosen = [
        one
        for one in layer_peers.contenders(gpu=platform == "gpu")
        if one.name == options.baseline or wanted(one.name, options.only)
    ]
    settings = {"rounds": options.rounds, "quick": options.quick, "dtype": options.dtype}
    cases: list[dict[str, Any]] = []
    for length, causal, backward in itertools.product(
        options.lengths, (False, True), (False, True)
    ):
        is_long = length >= LONG and platform == "cpu"
        if is_long and not causal:
            continue
        sizes = (options.batch, options.d_model, options.heads, options.dtype)
        setting = Setting(length, causal, backward, *sizes)
        found = measure(
            setting,
            [one for one in chosen if not is_long or one.name in LONG_ROWS],
            rounds=min(options.rounds, LONG_ROUNDS) if is_long else options.rounds,
            matmul_size=256 if options.quick else None,
            with_memory=options.memory and length == max(options.lengths),
            baseline=options.baseline,
        )
        cases.append(found)
        report.show(setting.label, found)
        report.keep_so_far("layer", options.out, origin, settings, cases=cases)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    report.keep("layer", options.out, origin, settings, cases=cases)
    return int(rows.any_refused(cases))


if __name__ == "__main__":
    sys.exit(main())
