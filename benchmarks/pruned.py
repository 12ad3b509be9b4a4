"""What removing 30% of the heads of SmolLM2 saves: one layer, the attention of all, the model.

    PYTHONPATH=src python3 benchmarks/pruned.py --quick

The heads with the least gate gradient (book/data/heads.json) are closed by zeros in W_O, removed
one by one, or removed in whole groups with their key/value heads. A prompt of T tokens is read, or
one more token after as many in the caches; float32. Beside the times stands the arithmetic: FLOPs,
and bytes of weights and caches. The rules are in README.md beside this file.
"""

import sys
from collections.abc import Sequence
from typing import Any

import harness
import numpy as np
import provenance
import report
from options import parser_of
from pruned_cases import attention_expected, attention_run, model_expected, model_run
from pruned_models import (
    BASELINE,
    FRACTION,
    Subject,
    Workload,
    cost_of,
    made_up,
    trained,
    variants_of,
)

__all__ = ["main", "measure", "one_layer", "plan"]

PARTS = ("one layer", "attention", "model")
TOLERANCE = 1e-4  # largest deviation from what is expected, relative to the largest entry


def one_layer(subject: Subject) -> Subject:
    """The layer in the middle as a model of its own; its own least important heads go."""
    middle = len(subject.params.layers) // 2
    return Subject(
        subject.params._replace(layers=subject.params.layers[middle : middle + 1]),
        subject.config._replace(num_layers=1),
        subject.importance[middle : middle + 1],
    )


def plan(quick: bool, rounds: int | None) -> list[tuple[str, Workload, int]]:
    """All cases: the part, the workload, and how many rounds; long prompts get fewer."""
    found = []
    for part in PARTS:
        for phase, batch in (("prefill", 1), ("prefill", 4), ("decode", 1), ("decode", 8)):
            if quick and (batch > 1 or part == "attention"):
                continue
            length = 8 if quick else 512 if phase == "prefill" else 1024
            is_long = phase == "prefill" and part != "one layer"
            usual = 20 if not is_long else 10 if batch == 1 else 6
            found.append((part, Workload(phase, batch, length), rounds or (2 if quick else usual)))
    return found


def measure(subject: Subject, part: str, workload: Workload, *, rounds: int) -> dict[str, Any]:
    """All forms of the model in one case: checked, timed in interleaved rounds, checked again.

    Raises:
        WrongOutput: an output is not that of closed heads.
    """
    if part == "one layer":
        subject = one_layer(subject)
    config, variants = subject.config, variants_of(subject)
    layers = list(range(config.num_layers))
    if part == "model":
        runs = {name: model_run(one, config, workload) for name, one in variants.items()}
        whole = variants[BASELINE]
        expected = {
            name: model_expected(whole, one, config, workload) for name, one in variants.items()
        }
    else:
        given = (config, workload, layers)
        runs = {name: attention_run(one, *given) for name, one in variants.items()}
        expected = {name: attention_expected(one, *given) for name, one in variants.items()}
    again = BASELINE + harness.SELF_PAIR_SUFFIX
    variants[again], expected[again] = variants[BASELINE], expected[BASELINE]

    def error(name: str, output: Any) -> float:
        got = output[0] if isinstance(output, tuple) else output
        return harness.verify(name, [np.asarray(got)], [expected[name]], TOLERANCE)

    for name, run in runs.items():
        error(name, run())
    label = f"{part}, {workload.phase} of {workload.batch}"
    times = harness.interleave(
        harness.with_self_pair(runs, BASELINE),
        rounds=rounds,
        progress=report.progress_line(label),
    )
    base = cost_of(variants[BASELINE], config, workload, layers)
    rows = []
    for name in times.seconds:
        variant = variants[name]
        cost = cost_of(variant, config, workload, layers)
        kept = [layer.attention for layer in variant.params.layers]
        rows.append(
            {
                "name": name,
                "package": "mha_book",
                "layout": "NTH",
                "remark": "the A/A self-pair" if name == again else variant.remark,
                "status": "measured",
                "heads_left": int(variant.keep.sum()),
                "query_heads": sum(p.w_q.shape[1] for p in kept),
                "key_heads": sum(p.w_k.shape[1] for p in kept),
                **cost,
                "predicted": {what: cost[what] / base[what] for what in cost},
                "error": error(name, times.outputs[name]),
                **harness.timings(name, times, BASELINE),
            }
        )
    return {
        "case": {"part": part, **workload._asdict(), "label": label},
        "tolerance": TOLERANCE,
        "baseline": BASELINE,
        "rows": rows,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of a case as aligned text."""
    lines = [f"{'':<16}{'heads':>6}{'ms':>9}{'ratio':>8}{'quartiles':>16}{'FLOPs':>8}{'bytes':>8}"]
    for row in rows:
        ratio, predicted = row["ratio"], row["predicted"]
        quartiles = f"{ratio['lower_quartile']:.3f} to {ratio['upper_quartile']:.3f}"
        lines.append(
            f"{row['name']:<16}{row['query_heads']:>6}{row['seconds']['median'] * 1e3:9.2f}"
            f"{ratio['median']:8.3f}{quartiles:>16}"
            f"{predicted['attention_flops']:8.3f}{predicted['attention_bytes']:8.3f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = parser_of(
        "pruned",
        "What removing 30% of the heads of SmolLM2 saves.",
        unit="the whole model's",
        rounds="default 6 to 20, quick 2",
    )
    options = parser.parse_args(arguments)
    origin = provenance.record()
    subject = made_up() if options.quick else trained()
    cases = []
    for part, workload, rounds in plan(options.quick, options.rounds):
        found = measure(subject, part, workload, rounds=rounds)
        cases.append(found)
        print(f"{found['case']['label']}\n{table(found['rows'])}", end="\n\n", flush=True)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    settings = {"quick": options.quick, "dtype": "float32", "fraction": FRACTION}
    report.keep("pruned", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
