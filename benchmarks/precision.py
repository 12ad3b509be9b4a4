"""Errors against float64: every implementation and the peers, by dtype and length; no times.

    PYTHONPATH=src python3 benchmarks/precision.py --quick

Causal attention of heads of width 64.  The inputs are rounded to the dtype before float64 sees
them, so that an error is that of the computation alone.  Two errors of the output and of each
gradient: the largest deviation over the largest entry, and the root of the mean squared deviation
over that of the entries.
"""

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import outputs
import peers
import provenance
import report
import rows
from cases import TOLERANCES, Case, expected_of, inputs_of, run_of

__all__ = ["errors_of", "main", "measure"]

PARTS = ("output", "query", "key", "value")


def errors_of(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """The largest and the root-mean-square deviation, each relative.

    Example:
        >>> errors_of(np.array([3.0, 5.0]), np.array([3.0, 4.0]))
        {'largest': 0.25, 'rms': 0.2}
    """
    off = found.astype(np.float64) - wanted
    return {
        "largest": float(np.abs(off).max() / np.abs(wanted).max()),
        "rms": float(np.sqrt((off**2).mean() / (wanted**2).mean())),
    }


def _row(contender: peers.Contender, case: Case, expected: Sequence[Any]) -> dict[str, Any]:
    """The errors of one contender, or why there are none."""
    row, package = rows.identity(contender), contender.package
    if importlib.util.find_spec(package) is None:
        return {**row, "status": "not measured", "reason": f"{package} is not installed"}
    try:
        arrays = [outputs.as_numpy(x) for x in run_of(contender, case, inputs_of(case))()]
    except Exception as problem:
        if (reason := rows.reason_of(problem, package)) is None:
            raise
        return {**row, "status": "not measured", "reason": reason}
    if contender.layout == "TNH":
        arrays = [np.swapaxes(array, 1, 2) for array in arrays]
    errors = {
        part: errors_of(arrays[number], expected[number].values)
        for number, part in enumerate(PARTS)
    }
    return {**row, "status": "measured", "errors": errors}


def measure(case: Case, contenders: Sequence[peers.Contender]) -> dict[str, Any]:
    """All contenders in one setting, which is small enough to be checked in full."""
    expected = expected_of(case)
    if expected.checked != "everything":
        raise ValueError(f"case: expected one that is compared in full, got {case.label}")
    return {
        "case": {**case._asdict(), "label": case.label},
        "rows": [_row(contender, case, expected.pieces) for contender in contenders],
    }


def _table(found: Sequence[dict[str, Any]]) -> str:
    """The largest errors as aligned text."""
    lines = [f"{'':<22}" + "".join(f"{part:>11}" for part in PARTS)]
    for row in found:
        if row["status"] != "measured":
            lines.append(f"{row['name']:<22}{row['status']}: {row['reason']}")
            continue
        numbers = "".join(f"{row['errors'][part]['largest']:11.1e}" for part in PARTS)
        lines.append(f"{row['name']:<22}{numbers}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all settings."""
    parser = argparse.ArgumentParser(description="Errors of attention against float64.")
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, to see that all of it runs; not a result")
    add("--lengths", type=int, nargs="+", help="positions (default 128 512 2048, quick 16)")
    add("--out", type=Path, help="result file (default results/precision-PLATFORM.json)")
    options = parser.parse_args(arguments)
    origin = provenance.record()
    lengths = options.lengths or ([16] if options.quick else [128, 512, 2048])
    every = peers.contenders(gpu=jax.default_backend() == "gpu")
    chosen = [one for one in every if "converted" not in one.name]
    cases = []
    for dtype, length in itertools.product(sorted(TOLERANCES), lengths):
        case = Case(length, True, True, heads=2 if options.quick else 4, dtype=dtype)
        cases.append(measure(case, chosen))
        print(f"{case.label}\n{_table(cases[-1]['rows'])}\n", flush=True)
    settings = {"quick": options.quick, "timed": False}
    report.keep("precision", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
