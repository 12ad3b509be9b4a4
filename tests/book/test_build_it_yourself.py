"""The code of *Build it yourself*, pasted cell after cell into an empty file, is a program."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.build_it_yourself import typed
from tests.stored.files import ROOT, result

pytestmark = pytest.mark.needs_models


def test_losses_that_a_run_prints_are_near_those_of_the_stored_seeds():
    """Their lines begin with ``device:``, which no run of the notebook compares."""
    page = (ROOT / "book" / "build-it-yourself.ipynb").read_text(encoding="utf8")
    printed = map(float, re.findall(r'"device: held-out loss ([\d.]+)', page))
    told = result("build-it-yourself.json")["models"]
    for loss, name in zip(printed, ("one head", "GQA"), strict=True):
        assert loss == pytest.approx(np.mean(told[name]["loss"]), abs=0.08)


@pytest.mark.slow
def test_what_a_reader_pastes_into_an_empty_file_trains_and_writes(tmp_path: Path) -> None:
    code = typed()
    assert 150 < sum(bool(line.strip()) for line in code.splitlines()) < 210
    short, count = re.subn(r"\bsteps=\d+", "steps=2", code)
    assert count == 2, "each of the two trainings"
    (tmp_path / "gpt.py").write_text(short, encoding="utf8")
    command = [sys.executable, "gpt.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert sum(line.startswith("device: held-out loss") for line in lines) == 2
    assert any(line.startswith("device: The people of the United States") for line in lines)
