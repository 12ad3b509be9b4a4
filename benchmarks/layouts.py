"""Orders of heads and positions in memory, and the forms of the projection to heads.

    PYTHONPATH=src python3 benchmarks/layouts.py --quick

Attention and the whole layer with (B, N, T, H) and with (B, T, N, H); queries, keys and values from
one product, from three, and from one for each head, compiled and not.  Width D = 512, 8 heads,
nothing masked.  The rules are in README.md beside this file.
"""

import functools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import harness
import jax
import jax.numpy as jnp
import layout_cases
import provenance
import report
from layout_cases import Setting
from limits import measure_rates
from options import CLOCKS, parser_of, wanted
from rows import rates_of

from mha_book.dispatch import IMPLEMENTATIONS
from mha_book.request import describe

__all__ = ["count_operations", "main", "measure", "plan", "served"]

# Largest deviation from float64, relative to the largest entry.
TOLERANCES = {"float32": 2e-5, "bfloat16": 4e-2, "float16": 6e-3}
FORMS = ("reference", "jax_nn", "blockwise", "cudnn")


def served(dtype: str) -> list[str]:
    """The implementations that this device and dtype have."""
    x = jnp.zeros((1, 8, 16, 64), dtype)
    request = describe(x, x, x)
    known = [form for form in FORMS if form in IMPLEMENTATIONS]
    return [form for form in known if IMPLEMENTATIONS[form].refuse(request) is None]


def plan(quick: bool, dtype: str = "float32") -> list[Setting]:
    """All settings, in the order of their parts."""
    if quick:
        small: dict[str, Any] = {"d_model": 16, "heads": 2}
        return [
            Setting("attention", "reference", 8, 8, **small),
            Setting("attention", "decode", 1, 32, **small),
            Setting("layer", "jax_nn", 8, 8, **small),
            Setting("projection", "compiled", 8, 8, **small),
            Setting("projection", "compiled, backward", 8, 8, **small),
            Setting("projection", "op by op", 1, 1, **small),
        ]
    forms = served(dtype)
    whole = [form for form in forms if form != "blockwise"]
    lengths = (512, 2048)
    passes = ("compiled", "op by op")
    return [
        setting._replace(dtype=dtype)
        for setting in (
            *(Setting("attention", form, 128, 128, batch=16) for form in whole),
            *(Setting("attention", form, n, n) for n in lengths for form in forms),
            *(Setting("attention", form, 1, 8192) for form in ("decode", "jax_nn")),
            *(Setting("layer", form, n, n) for n in lengths for form in forms),
            *(Setting("projection", form, n, n) for form in passes for n in (1, 128, 2048)),
            *(Setting("projection", "compiled, backward", n, n) for n in (128, 2048)),
        )
    ]


_COPY = re.compile(r"= b?f(\d+)\[([\d,]+)\]\S* copy\(")


def count_operations(run: functools.partial[Any]) -> Mapping[str, int]:
    """What a program consists of: of a compiled one its products and copies, else its calls.

    A copy gives its operand another order in memory; its bytes are those written.  The body of a
    loop is counted once.
    """
    if not hasattr(run.func, "lower"):
        return {"calls": len(jax.make_jaxpr(run.func)(*run.args).jaxpr.eqns)}
    text = str(run.func.lower(*run.args, **run.keywords).compile().as_text())
    sizes = [
        int(bits) // 8 * math.prod(int(n) for n in shape.split(","))
        for bits, shape in _COPY.findall(text)
    ]
    products = text.count(" dot(") + text.count("__cublas$") + text.count("__onednn$matmul")
    return {"products": products, "copies": len(sizes), "copied_bytes": sum(sizes)}


def measure(
    setting: Setting, rates: dict[str, Any], *, rounds: int, clock: str = "wall"
) -> dict[str, Any]:
    """All forms in one setting: checked, timed in interleaved rounds, checked again.

    Raises:
        WrongOutput: an output differs from float64.
    """
    inputs = layout_cases.inputs_of(setting)
    expected = layout_cases.expected_of(setting, inputs)
    runs = layout_cases.contenders_of(setting, inputs)
    baseline = next(iter(runs))
    again = baseline + harness.SELF_PAIR_SUFFIX

    def checked(name: str, output: Any) -> float:
        form = name.removesuffix(harness.SELF_PAIR_SUFFIX)
        outputs = layout_cases.outputs_of(setting, form, output)
        return harness.verify(name, outputs, expected, TOLERANCES[setting.dtype])

    for name, run in runs.items():
        checked(name, run())
    times = harness.interleave(
        harness.with_self_pair(runs, baseline),
        rounds=rounds,
        clock=CLOCKS[clock],
        progress=report.progress_line(setting.label),
    )
    flops, rows = layout_cases.flops_of(setting), []
    for name in [*runs, again]:
        form = name.removesuffix(harness.SELF_PAIR_SUFFIX)
        measured = harness.timings(name, times, baseline)
        rows.append(
            {
                "name": name,
                "package": "jax" if setting.part == "projection" else "mha_book",
                "layout": "TNH" if form.startswith("positions") else "NTH",
                "remark": "the A/A self-pair" if name == again else "",
                "status": "measured",
                "operations": count_operations(runs[form]),
                "error": checked(name, times.outputs[name]),
                **measured,
                **rates_of(measured["seconds"]["median"], flops, rates),
            }
        )
    return {
        "case": {**setting._asdict(), "label": setting.label},
        "visible_pairs": setting.batch * setting.queries * setting.keys,
        "matmul_flops": flops,
        "tolerance": TOLERANCES[setting.dtype],
        "rates": rates,
        "baseline": baseline,
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = parser_of(
        "layouts",
        "Layouts of heads in memory, and the forms of the projection to heads.",
        unit="the first row's",
        clock=True,
    )
    add = parser.add_argument
    add("--dtype", choices=sorted(TOLERANCES), default="float32", help="of inputs and outputs")
    add("--only", nargs="+", metavar="TEXT", help="settings whose label contains one of these")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (4 if options.quick else 20)
    origin = provenance.record()
    settings = {
        "rounds": rounds,
        "quick": options.quick,
        "dtype": options.dtype,
        "clock": options.clock,
    }
    cases: list[dict[str, Any]] = []
    part, rates = "", {}
    for setting in plan(options.quick, options.dtype):
        if not wanted(setting.label, options.only):
            continue
        if setting.part != part:  # the limits once for each part
            size = 256 if options.quick else None
            clock = CLOCKS[options.clock]
            part, rates = setting.part, measure_rates(options.dtype, matmul_size=size, clock=clock)
        cases.append(measure(setting, rates, rounds=rounds, clock=options.clock))
        report.show(setting.label, cases[-1])
        report.keep_so_far("layouts", options.out, origin, settings, cases=cases)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    report.keep("layouts", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
