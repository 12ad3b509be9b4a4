"""One head or many: attention and the whole layer over the number of heads, at a fixed width.

    PYTHONPATH=src python3 benchmarks/heads.py --quick

D features are cut into N heads of width D/N.  The matrix products have the same number of
operations for every N; the scores number N·T².  T = S positions, float32, forward, nothing
masked.  The baseline is D/64 heads of width 64.  The rules are in README.md beside this file.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import provenance
import report
from limits import attention_flops, measure_rates

from mha_book import MultiHeadParams, attend, multi_head_attention

__all__ = ["Setting", "contender", "expected_of", "main", "measure"]

BASELINE = "reference"
# On a machine that others use too, the processor's time of this process, all threads together,
# says more than the time on the wall.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
TOLERANCE = 2e-5  # largest deviation from float64, relative to the largest entry


class Setting(NamedTuple):
    """One setting in which the numbers of heads are compared."""

    part: str  # "attention" without projections, or the whole "layer"
    length: int
    d_model: int
    implementation: str = "reference"

    @property
    def label(self) -> str:
        """A short title."""
        return f"{self.part} T={self.length} d_model={self.d_model} {self.implementation}"


def inputs_of(setting: Setting) -> list[np.ndarray]:
    """Random features: of queries, keys and values, or of the input with four matrices."""
    rng = np.random.default_rng(setting.length)
    rows, width = (setting.length, setting.d_model), setting.d_model
    if setting.part == "attention":
        return [rng.standard_normal(rows).astype(np.float32) for _ in range(3)]
    weights = [rng.standard_normal((width, width)) * width**-0.5 for _ in range(4)]
    return [x.astype(np.float32) for x in (rng.standard_normal(rows), *weights)]


def in_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    """(T, D) to (1, N, T, H)."""
    return x.reshape(1, len(x), num_heads, -1).swapaxes(1, 2)


def contender(setting: Setting, inputs: Sequence[np.ndarray], num_heads: int) -> Callable[[], Any]:
    """What is timed for one number of heads: a compiled function with its arguments."""
    chosen = setting.implementation
    if setting.part == "attention":
        arrays = [jnp.asarray(in_heads(x, num_heads)) for x in inputs]
        attention = jax.jit(functools.partial(attend, implementation=chosen))
        return functools.partial(attention, *arrays)
    x, *weights = inputs
    width = setting.d_model
    shape = (width, num_heads, width // num_heads)
    params = MultiHeadParams(
        *(jnp.asarray(w.reshape(shape)) for w in weights[:3]),
        jnp.asarray(weights[3].reshape(*shape[1:], width)),
    )
    layer = jax.jit(functools.partial(multi_head_attention, implementation=chosen))
    return functools.partial(layer, params, jnp.asarray(x[None]))


def expected_of(setting: Setting, inputs: Sequence[np.ndarray], num_heads: int) -> np.ndarray:
    """The output in float64, without the package."""
    x, *rest = (array.astype(np.float64) for array in inputs)
    features = [x, *rest] if setting.part == "attention" else [x @ w for w in rest[:3]]
    heads = (in_heads(f, num_heads) for f in features)
    output = oracle.attention_float64(*heads, is_causal=False)[0]
    if setting.part == "attention":
        return output
    return output.swapaxes(1, 2).reshape(1, len(x), -1) @ rest[3]


def flops_of(setting: Setting) -> int:
    """Matmul FLOPs: the same for every number of heads."""
    length, width = setting.length, setting.d_model
    projections = 0 if setting.part == "attention" else 4 * 2 * length * width * width
    return projections + attention_flops(length**2, 1, width, width, backward=False)


def measure(
    setting: Setting,
    counts: Sequence[int],
    *,
    rounds: int,
    matmul_size: int = 2048,
    clock: str = "wall",
) -> dict[str, Any]:
    """All numbers of heads in one setting: checked, timed in interleaved rounds, checked again.

    Raises:
        WrongOutput: an output differs from float64.
    """
    base = setting.d_model // 64 or 1
    names = {count: BASELINE if count == base else f"heads={count}" for count in counts}
    inputs = inputs_of(setting)
    # The largest in the middle of a round: it leaves the caches to others than the self-pair.
    middle = [*sorted(counts)[::2], *sorted(counts)[1::2][::-1]]
    runs = {names[count]: contender(setting, inputs, count) for count in middle}
    expected = {name: expected_of(setting, inputs, count) for count, name in names.items()}
    again = BASELINE + harness.SELF_PAIR_SUFFIX
    expected[again] = expected[BASELINE]
    for name, run in runs.items():
        harness.verify(name, [run()], [expected[name]], TOLERANCE)
    rates = measure_rates("float32", matmul_size=matmul_size, clock=CLOCKS[clock])
    times = harness.interleave(
        harness.with_self_pair(runs, BASELINE),
        rounds=rounds,
        clock=CLOCKS[clock],
        progress=report.progress_line(setting.label),
    )
    flops, rows = flops_of(setting), []
    for count, name in [*names.items(), (base, again)]:
        measured = harness.timings(name, times, BASELINE)
        rate = flops / measured["seconds"]["median"]
        error = harness.verify(name, [times.outputs[name]], [expected[name]], TOLERANCE)
        rows.append(
            {
                "name": name,
                "package": "mha_book",
                "layout": "NTH",
                "remark": "the A/A self-pair" if name == again else "",
                "status": "measured",
                "heads": count,
                "head_dim": setting.d_model // count,
                "score_count": count * setting.length**2,
                "error": error,
                **measured,
                "flops_per_s": rate,
                "fraction_of_matmul_rate": rate / rates["matmul_flops_per_s"],
            }
        )
    return {
        "case": {**setting._asdict(), "dtype": "float32", "label": setting.label},
        "visible_pairs": setting.length**2,
        "matmul_flops": flops,
        "tolerance": TOLERANCE,
        "rates": rates,
        "baseline": BASELINE,
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description="Attention and the layer over the number of heads, at a fixed width.",
        epilog="Ratios are to the time of heads of width 64 in the same round; above 1 is slower.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, to see that all of it runs; not a result")
    add("--rounds", type=int, help="rounds a case (default 20, quick 4; even balances the order)")
    add("--clock", choices=sorted(CLOCKS), default="wall", help="what a second is (default wall)")
    add("--out", type=Path, help="result file (default results/heads-PLATFORM.json)")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (4 if options.quick else 20)
    length, width = (16, 64) if options.quick else (512, 512)
    counts = [2**n for n in range(4 if options.quick else 7)]
    origin = provenance.record()
    cases = []
    for part, chosen in (
        ("attention", "reference"),
        ("attention", "jax_nn"),
        ("layer", "reference"),
    ):
        setting = Setting(part, length, width, chosen)
        found = measure(
            setting,
            counts,
            rounds=rounds,
            matmul_size=256 if options.quick else 2048,
            clock=options.clock,
        )
        cases.append(found)
        print(f"{setting.label}, {found['rates']['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s matmul")
        print(report.table(found["rows"]), end="\n\n", flush=True)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    settings = {
        "rounds": rounds,
        "quick": options.quick,
        "dtype": "float32",
        "clock": options.clock,
    }
    report.keep("heads", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
