"""The whole of ``make test`` on every supported Python, with the oldest and the newest JAX.

    python -m experiments.versions                  # all cells, one after the other: hours
    python -m experiments.versions "3.12 oldest"    # one of them; the others stay as stored

Each cell runs in a fresh clone of the last commit, with an environment of its own; what others run
on the machine at the same time lengthens it. The workflow does the same on every push.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

from experiments.shared import provenance
from mha_book.storage import read_result, seal, write_atomic

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "tests" / "data" / "versions.json"
COMMAND = "python -m experiments.versions"
OLDEST = "0.10.0"  # of the supported range; the newest that a Python has is the lock's


class Cell(NamedTuple):
    """One combination: a Python, a JAX (empty: the lock's), and how the machine is limited."""

    python: str
    jax: str = ""
    machine: str = "two cores"
    before: tuple[str, ...] = ()
    flags: str = ""


ONE_CORE = ("taskset", "-c", "0")
CELLS = {
    **{f"{python} newest": Cell(python) for python in ("3.11", "3.12", "3.13")},
    **{f"{python} oldest": Cell(python, OLDEST) for python in ("3.11", "3.12", "3.13")},
    "one core": Cell("3.11", "", "one core", ONE_CORE),
    "AVX2": Cell("3.11", "", "one core, without AVX-512", ONE_CORE, "--xla_cpu_max_isa=AVX2"),
}
ASK = "import sys, jax; print(sys.version.split()[0], jax.__version__)"


def run(name: str, folder: Path) -> dict[str, Any]:
    """Run a cell in a fresh clone below ``folder``; its row."""
    cell, clone, report = CELLS[name], folder / "clone", folder / "report.xml"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    ours = ("VIRTUAL_ENV", "PYTHONPATH", "XLA_FLAGS")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    environment |= {"CI": "true", "PYTEST_ADDOPTS": f"--junitxml={report}"}
    environment |= {"XLA_FLAGS": cell.flags} if cell.flags else {}
    command = [*cell.before, "make", "test", f"PYTHON=python{cell.python}", f"JAX={cell.jax}"]
    subprocess.run(command, cwd=clone, env=environment)
    return row(name, report, clone / ".venv" / "bin" / "python", clone)


def row(
    name: str, report: Path, python: Path, clone: Path, again: Path | None = None
) -> dict[str, Any]:
    """What a report in pytest's XML says of a cell; the interpreter says which versions ran.

    A test that failed or was not reached, and passed in a later report, ``again``, is mended.
    """
    suite = next(ElementTree.parse(report).iter("testsuite"))
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    asked = subprocess.run([python, "-c", ASK], text=True, capture_output=True, check=True)
    commit = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    first = results(suite)
    later = results(next(ElementTree.parse(again).iter("testsuite"))) if again else {}
    mended = [test for test, passed in later.items() if passed and not first.get(test)]
    return {
        "python": asked.stdout.split()[0],
        "jax": asked.stdout.split()[1],
        "machine": CELLS[name].machine,
        "passed": counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"],
        "mended": mended,
        "not passed": [test for test in first if not first[test] and test not in mended],
        "skipped": counts["skipped"],
        "seconds": round(float(suite.get("time", 0))),
        "date": str(suite.get("timestamp"))[:10],
        "commit": subprocess.check_output(commit, text=True).strip(),
    }


def results(suite: ElementTree.Element) -> dict[str, bool]:
    """Whether each test of a report passed."""
    return {
        f"{case.get('classname')}::{case.get('name')}": case.find("failure") is None
        and case.find("error") is None
        for case in suite.iter("testcase")
    }


def store(found: dict[str, Any], path: Path) -> None:
    """Put rows beside those that are stored."""
    stored = read_result(path)["cells"] if path.exists() else {}
    cells = {name: {**stored, **found}[name] for name in CELLS if name in {**stored, **found}}
    missing = [name for name in CELLS if name not in cells]
    origin = provenance(COMMAND, seeds={})
    document = seal({"provenance": origin, "cells": cells, "not run": missing})
    write_atomic(path, (json.dumps(document, indent=1) + "\n").encode())


def main(given: list[str] | None = None) -> None:
    """Run the cells that are named, or store what the reports of other runs say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", choices=[[], *CELLS], help="all, if none is named")
    parser.add_argument("--report", type=Path, help="of a run of this cell, not to run it again")
    parser.add_argument("--again", type=Path, help="a later one, of what had failed and was mended")
    parser.add_argument("--clone", type=Path, help="where that was, with its .venv")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(given)
    if options.report:
        python = options.clone / ".venv" / "bin" / "python"
        (name,) = options.cells
        found = row(name, options.report, python, options.clone, options.again)
        store({name: found}, options.output)
        return
    for name in options.cells or CELLS:
        with tempfile.TemporaryDirectory() as folder:
            found = run(name, Path(folder))
        print(f"{datetime.datetime.now():%H:%M} {name}: {found}", file=sys.stderr, flush=True)
        store({name: found}, options.output)


if __name__ == "__main__":
    main()
