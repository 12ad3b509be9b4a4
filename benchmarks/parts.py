"""Where the time of a transformer layer goes: its parts over the length of the sequence.

    PYTHONPATH=src python3 benchmarks/parts.py --quick

The sizes are those of the first transformer's base model: width D = 512, 8 heads, 2048 hidden
features with a ReLU between; float32, forward, nothing masked.  The baseline is the four
projections.  The rules are in README.md beside this file.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import provenance
import report
from limits import attention_flops, measure_rates
from options import CLOCKS, parser_of
from rows import rates_of

from mha_book import attend

__all__ = ["expected_of", "flops_of", "main", "measure", "parts_of"]

BASELINE = "projections"
TOLERANCE = 2e-5  # largest deviation from float64, relative to the largest entry
SHAPE = {"d_model": 512, "heads": 8, "hidden": 2048}


def project(x: jax.Array, *weights: jax.Array) -> list[jax.Array]:
    """The four projections of a layer, each a product with a square matrix."""
    return [x @ weight for weight in weights]


def feed_forward(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Two products with a ReLU between them."""
    return jnp.maximum(x @ w_in, 0.0) @ w_out


def inputs_of(length: int, d_model: int, heads: int, hidden: int) -> dict[str, list[np.ndarray]]:
    """Random arguments of each part."""
    rng = np.random.default_rng(length)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    x = draw(length, d_model)
    square = [draw(d_model, d_model, scale=d_model**-0.5) for _ in range(4)]
    wide = [draw(d_model, hidden, scale=d_model**-0.5), draw(hidden, d_model, scale=hidden**-0.5)]
    in_heads = [draw(1, heads, length, d_model // heads) for _ in range(3)]
    return {BASELINE: [x, *square], "attention": in_heads, "feed-forward": [x, *wide]}


def parts_of(inputs: dict[str, list[np.ndarray]]) -> dict[str, Callable[[], Any]]:
    """What is timed: each part compiled, with its arguments."""
    functions = {BASELINE: project, "attention": attend, "feed-forward": feed_forward}
    return {
        name: functools.partial(jax.jit(function), *map(jnp.asarray, inputs[name]))
        for name, function in functions.items()
    }


def expected_of(inputs: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    """The outputs in float64, without the package."""
    wide = {name: [x.astype(np.float64) for x in arrays] for name, arrays in inputs.items()}
    x, *square = wide[BASELINE]
    _, w_in, w_out = wide["feed-forward"]
    return {
        BASELINE: [x @ weight for weight in square],
        "attention": [oracle.attention_float64(*wide["attention"], is_causal=False)[0]],
        "feed-forward": [np.maximum(x @ w_in, 0.0) @ w_out],
    }


def flops_of(length: int, d_model: int, heads: int, hidden: int) -> dict[str, int]:
    """Matmul FLOPs of each part."""
    width = d_model // heads
    return {
        BASELINE: 2 * length * 4 * d_model**2,
        "attention": attention_flops(length**2, heads, width, width, backward=False),
        "feed-forward": 2 * length * 2 * d_model * hidden,
    }


def measure(
    length: int,
    shape: dict[str, int],
    *,
    rounds: int,
    matmul_size: int | None = None,
    clock: str = "wall",
) -> dict[str, Any]:
    """All parts at one length: checked, timed in interleaved rounds, checked again.

    Raises:
        WrongOutput: an output differs from float64.
    """
    inputs = inputs_of(length, **shape)
    runs, expected, flops = parts_of(inputs), expected_of(inputs), flops_of(length, **shape)

    def checked(name: str, output: Any) -> float:
        outputs = output if isinstance(output, (list, tuple)) else [output]
        return harness.verify(name, outputs, expected[name], TOLERANCE)

    for name, run in runs.items():
        checked(name, run())
    rates = measure_rates("float32", matmul_size=matmul_size, clock=CLOCKS[clock])
    # Attention in the middle, one part that is not the baseline on either side: what runs after it
    # finds the caches emptied, and the self-pair must not differ by that.
    twice = "feed-forward" + harness.SELF_PAIR_SUFFIX
    order = [BASELINE, "feed-forward", "attention", twice]
    contenders = {name: runs[name.removesuffix(harness.SELF_PAIR_SUFFIX)] for name in order}
    times = harness.interleave(
        harness.with_self_pair(contenders, BASELINE),
        rounds=rounds,
        clock=CLOCKS[clock],
        progress=report.progress_line(f"T={length}"),
    )
    again, rows = BASELINE + harness.SELF_PAIR_SUFFIX, []
    for name in [*order, again]:
        part = name.removesuffix(harness.SELF_PAIR_SUFFIX)
        measured = harness.timings(name, times, BASELINE)
        rows.append(
            {
                "name": name,
                "package": "mha_book" if part == "attention" else "jax",
                "layout": "NTH" if part == "attention" else "TD",
                "remark": "the A/A self-pair" if name in (twice, again) else "",
                "status": "measured",
                "matmul_flops": flops[part],
                "error": checked(part, times.outputs[name]),
                **measured,
                **rates_of(measured["seconds"]["median"], flops[part], rates),
            }
        )
    return {
        "case": {"length": length, **shape, "dtype": "float32", "label": f"T={length}"},
        "visible_pairs": length**2,
        "tolerance": TOLERANCE,
        "rates": rates,
        "baseline": BASELINE,
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = parser_of(
        "parts",
        "The parts of a transformer layer over the length of the sequence.",
        unit="the projections'",
        clock=True,
    )
    options = parser.parse_args(arguments)
    rounds = options.rounds or (4 if options.quick else 20)
    shape = {"d_model": 16, "heads": 2, "hidden": 32} if options.quick else SHAPE
    lengths = (8, 16) if options.quick else (128, 256, 512, 1024, 2048)
    origin = provenance.record()
    cases = []
    for length in lengths:
        found = measure(
            length,
            shape,
            rounds=rounds,
            matmul_size=256 if options.quick else None,
            clock=options.clock,
        )
        cases.append(found)
        report.show(f"T={length}", found)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    settings = {
        "rounds": rounds,
        "quick": options.quick,
        "dtype": "float32",
        "clock": options.clock,
    }
    report.keep("parts", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
