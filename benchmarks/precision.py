"""Errors against float64: every implementation and the peers, by dtype and length; no times.

    PYTHONPATH=src python3 benchmarks/precision.py --quick

Causal attention of heads of width 64.  The inputs are rounded to the dtype before float64 sees
them, so that an error is that of the computation alone.  Two errors of the output and of each
gradient: the largest deviation over the largest entry, and the root of the mean squared deviation
over that of the entries.
"""

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from attention import Case, expected_of, inputs_of, run_of
from harness.comparison import identity, installed, reason_of
from harness.options import Parser
from harness.oracle import TOLERANCES, as_numpy
from harness.report import Recorder, benchmark
from peers.attention import Contender, contenders

PARTS = ("output", "query", "key", "value")


def errors_of(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """The largest and the root-mean-square deviation, each relative."""
    off = found.astype(np.float64) - wanted
    return {
        "largest": float(np.abs(off).max() / np.abs(wanted).max()),
        "rms": float(np.sqrt((off**2).mean() / (wanted**2).mean())),
    }


def _row(contender: Contender, case: Case, expected: Sequence[Any]) -> dict[str, Any]:
    """The errors of one contender, or why there are none."""
    row, package = identity(contender), contender.package
    if not installed(package):
        return {**row, "status": "not measured", "reason": f"{package} is not installed"}
    try:
        arrays = [as_numpy(x) for x in run_of(contender, case, inputs_of(case))()]
    except Exception as problem:
        if (reason := reason_of(problem, package)) is None:
            raise
        return {**row, "status": "not measured", "reason": reason}
    if contender.layout == "TNH":
        arrays = [np.swapaxes(array, 1, 2) for array in arrays]
    errors = {
        part: errors_of(arrays[number], expected[number].values)
        for number, part in enumerate(PARTS)
    }
    return {**row, "status": "measured", "errors": errors}


def measure(case: Case, chosen: Sequence[Contender]) -> dict[str, Any]:
    expected = expected_of(case)
    if expected.checked != "everything":
        raise ValueError(f"case: expected one that is compared in full, got {case.label}")
    return {
        "case": {**case._asdict(), "label": case.label},
        "rows": [_row(contender, case, expected.pieces) for contender in chosen],
    }


COLUMNS = {part: lambda row, part=part: f"{row['errors'][part]['largest']:.1e}" for part in PARTS}


def _add(parser: Parser) -> None:
    parser.sized("--lengths", (128, 512, 2048), (16,), help="positions")


@benchmark(add=_add, timed=False)
def main(recorder: Recorder, options: Any) -> Any:
    every = contenders(gpu=jax.default_backend() == "gpu")
    chosen = [one for one in every if "converted" not in one.name]
    for dtype, length in itertools.product(sorted(TOLERANCES), options.lengths):
        case = Case(length, True, True, heads=2 if options.quick else 4, dtype=dtype)
        recorder.add(measure(case, chosen), COLUMNS)


if __name__ == "__main__":
    sys.exit(main())
