"""Planted defects: how much of what can go wrong do the fast tests notice?

Each file ``AREA.yml`` lists small changes to one file each, and the tests that should then fail.
``python -m tests.defects`` plants them one at a time in a copy of the repository.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

__all__ = ["ROOT", "Defect", "Verdict", "copied", "load", "plant"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Defect(NamedTuple):
    """One change that makes the repository wrong, and the tests that should see it."""

    id: str
    file: str
    old: str
    new: str
    tests: list[str]


class Verdict(NamedTuple):
    """What came of planting a defect: ``caught``, ``missed``, or ``gone`` where the text is not."""

    status: str
    by: str


def load(areas: list[str]) -> list[Defect]:
    """Return the defects of some areas, or of all."""
    files = [HERE / f"{area}.yml" for area in areas] or sorted(HERE.glob("*.yml"))
    return [Defect(**entry) for file in files for entry in yaml.safe_load(file.read_text())]


@contextlib.contextmanager
def copied(revision: str | None = None) -> Iterator[Path]:
    """Yield a copy of the repository as it is here, or as another revision has it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "copy"
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        for name in names:
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, place / name)
        if revision:
            archive = subprocess.run(
                ["git", "archive", revision], cwd=ROOT, capture_output=True, check=True
            ).stdout
            shutil.rmtree(place)
            place.mkdir()
            subprocess.run(["tar", "-x"], cwd=place, input=archive, check=True)
        yield place


def plant(defect: Defect, place: Path) -> Verdict:
    """Plant a defect in a copy, run the tests that should see it, and take it out again."""
    file = place / defect.file
    text = file.read_text() if file.is_file() else ""
    if text.count(defect.old) != 1:
        return Verdict("gone", f"the text is there {text.count(defect.old)} times")
    tests = [one for one in defect.tests if (place / one.partition("::")[0]).exists()]
    if not tests:
        return Verdict("missed", "none of its tests is there")
    file.write_text(text.replace(defect.old, defect.new))
    try:
        options = "-n0 -x -q --no-header --durations=0 --tb=no -p no:cacheprovider --nbval"
        command = [sys.executable, "-m", "pytest", *options.split(), *tests]
        environment = {"PYTHONPATH": f"{place / 'src'}:{place}", "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(
            command, cwd=place, capture_output=True, text=True, env=_environment() | environment
        )
    finally:
        file.write_text(text)
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ran.returncode == 0:
        return Verdict("missed", "")
    if ran.returncode not in (1, 2):
        return Verdict("missed", f"pytest ended with {ran.returncode}")
    return Verdict("caught", failed[0].split(" - ")[0] if failed else "an import that fails")


def _environment() -> dict[str, str]:
    return {"JAX_COMPILATION_CACHE_DIR": str(ROOT / "_build" / "compiled"), **os.environ}
