"""The whole of ``make test`` on every supported Python, with the oldest and the newest JAX.

    python -m experiments.versions                  # all cells, one after the other: hours
    python -m experiments.versions "3.12 oldest"    # one of them; the others stay as stored

Each cell runs in a fresh clone of the last commit, with an environment of its own; what others run
on the machine at the same time lengthens it. The workflow does the same on every push.
"""

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
    python: str
    jax: str = ""  # the lock's
    machine: str = "two cores"
    before: tuple[str, ...] = ()
    flags: str = ""


ONE_CORE, PYTHONS = ("taskset", "-c", "0"), ("3.11", "3.12", "3.13")
CELLS = {
    **{f"{python} newest": Cell(python) for python in PYTHONS},
    **{f"{python} oldest": Cell(python, OLDEST) for python in PYTHONS},
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
    asked = [clone / ".venv" / "bin" / "python", "-c", ASK]
    python, jax = subprocess.check_output(asked, text=True).split()
    commit = subprocess.check_output(["git", "-C", str(clone), "rev-parse", "HEAD"], text=True)
    versions = {"python": python, "jax": jax, "machine": cell.machine, "commit": commit.strip()}
    return {**versions, **read_report(report)}


def read_report(report: Path) -> dict[str, Any]:
    suite = next(ElementTree.parse(report).iter("testsuite"))
    bad = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    tests, skipped = (int(suite.get(key, 0)) for key in ("tests", "skipped"))
    return {
        "passed": tests - skipped - len(bad), "mended": [], "not passed": bad, "skipped": skipped,
        "seconds": round(float(suite.get("time", 0))), "date": str(suite.get("timestamp"))[:10],
    }  # fmt: skip


def store(found: dict[str, Any], path: Path = RESULT) -> None:
    every = {**(read_result(path)["cells"] if path.exists() else {}), **found}
    cells = {name: every[name] for name in CELLS if name in every}
    missing = [name for name in CELLS if name not in cells]
    origin = provenance(COMMAND, seeds={})
    document = seal({"provenance": origin, "cells": cells, "not run": missing})
    write_atomic(path, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    for name in sys.argv[1:] or CELLS:
        with tempfile.TemporaryDirectory() as folder:
            store({name: run(name, Path(folder))})
