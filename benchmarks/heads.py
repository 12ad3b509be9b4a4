"""One head or many: attention and the whole layer over the number of heads, at a fixed width.

    PYTHONPATH=src python3 benchmarks/heads.py --quick

D features are cut into N heads of width D/N.  The matrix products have the same number of
operations for every N; the scores number N·T².  T = S positions, forward, nothing masked.  The
baseline is D/64 heads of width 64.  The rules are in README.md beside this file.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import provenance
import report
from cases import TOLERANCES
from limits import attention_flops, measure_rates
from options import CLOCKS, parser_of
from rows import rates_of

from mha_book import MultiHeadParams, attend, multi_head_attention

__all__ = ["Setting", "contender", "expected_of", "main", "measure"]

BASELINE = "reference"
TOLERANCE = 2e-5  # of float32: largest deviation from float64, relative to the largest entry
CHOICE = "choice"  # in place of an implementation: that of `choose`


class Setting(NamedTuple):
    """One setting in which the numbers of heads are compared."""

    part: str  # "attention" without projections, or the whole "layer"
    length: int
    d_model: int
    implementation: str = "reference"
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """A short title."""
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.part} T={self.length} d_model={self.d_model} {self.implementation}{dtype}"

    @property
    def tolerance(self) -> float:
        """How far an output may lie from float64, relative to the largest entry."""
        return TOLERANCE if self.dtype == "float32" else 2 * TOLERANCES[self.dtype]


def inputs_of(setting: Setting) -> list[np.ndarray]:
    """Random features: of queries, keys and values, or of the input with four matrices."""
    rng = np.random.default_rng(setting.length)
    rows, width = (setting.length, setting.d_model), setting.d_model
    dtype = jnp.dtype(setting.dtype)
    if setting.part == "attention":
        return [rng.standard_normal(rows).astype(dtype) for _ in range(3)]
    weights = [rng.standard_normal((width, width)) * width**-0.5 for _ in range(4)]
    return [x.astype(dtype) for x in (rng.standard_normal(rows), *weights)]


def in_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    """(T, D) to (1, N, T, H)."""
    return x.reshape(1, len(x), num_heads, -1).swapaxes(1, 2)


def contender(setting: Setting, inputs: Sequence[np.ndarray], num_heads: int) -> Callable[[], Any]:
    """What is timed for one number of heads: a compiled function with its arguments."""
    chosen = None if setting.implementation == CHOICE else setting.implementation
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
    matmul_size: int | None = None,
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
        harness.verify(name, [run()], [expected[name]], setting.tolerance)
    rates = measure_rates(setting.dtype, matmul_size=matmul_size, clock=CLOCKS[clock])
    times = harness.interleave(
        harness.with_self_pair(runs, BASELINE),
        rounds=rounds,
        clock=CLOCKS[clock],
        progress=report.progress_line(setting.label),
    )
    flops, rows = flops_of(setting), []
    for count, name in [*names.items(), (base, again)]:
        measured = harness.timings(name, times, BASELINE)
        error = harness.verify(name, [times.outputs[name]], [expected[name]], setting.tolerance)
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
                **rates_of(measured["seconds"]["median"], flops, rates),
            }
        )
    return {
        "case": {**setting._asdict(), "label": setting.label},
        "visible_pairs": setting.length**2,
        "matmul_flops": flops,
        "tolerance": setting.tolerance,
        "rates": rates,
        "baseline": BASELINE,
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = parser_of(
        "heads",
        "Attention and the layer over the number of heads, at a fixed width.",
        unit="the heads of width 64's",
        clock=True,
    )
    add = parser.add_argument
    add("--length", type=int, help="positions (default 512, quick 16)")
    add("--d-model", type=int, help="width of the model (default 512, quick 64)")
    add("--dtype", choices=sorted(TOLERANCES), default="float32", help="of inputs and weights")
    add("--choice", action="store_true", help="what attend chooses, in place of jax.nn")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (4 if options.quick else 20)
    length = options.length or (16 if options.quick else 512)
    width = options.d_model or (64 if options.quick else 512)
    counts = [2**n for n in range(4 if options.quick else 7)]
    origin = provenance.record()
    cases = []
    for part, chosen in (
        ("attention", "reference"),
        ("attention", CHOICE if options.choice else "jax_nn"),
        ("layer", CHOICE if options.choice else "reference"),
    ):
        setting = Setting(part, length, width, chosen, options.dtype)
        found = measure(
            setting,
            counts,
            rounds=rounds,
            matmul_size=256 if options.quick else None,
            clock=options.clock,
        )
        cases.append(found)
        report.show(setting.label, found)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    settings = {
        "rounds": rounds,
        "quick": options.quick,
        "dtype": options.dtype,
        "clock": options.clock,
    }
    report.keep("heads", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
