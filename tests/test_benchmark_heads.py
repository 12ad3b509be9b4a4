"""The benchmark over the number of heads: outputs, equal work, a run from end to end."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SIBLINGS = ("harness", "heads", "limits", "oracle", "provenance", "report")


@pytest.fixture(scope="module")
def modules():
    """The modules as the script imports them; gone afterwards."""
    sys.path.insert(0, str(BENCHMARKS))
    loaded = {name: importlib.import_module(name) for name in SIBLINGS}
    yield loaded
    sys.path.remove(str(BENCHMARKS))
    for name in SIBLINGS:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("part", ["attention", "layer"])
def test_outputs_against_float64(modules, part):
    heads = modules["heads"]
    setting = heads.Setting(part, 7, 12)
    inputs = heads.inputs_of(setting)
    for count in (1, 3, 12):
        ours = np.asarray(heads.contender(setting, inputs, count)())
        expected = heads.expected_of(setting, inputs, count)
        assert ours.shape == expected.shape
        assert modules["harness"].largest_error([ours], [expected]) < heads.TOLERANCE


def test_quick_run_end_to_end(modules, tmp_path):
    out = tmp_path / "quick.json"
    command = [sys.executable, str(BENCHMARKS / "heads.py"), "--quick", "--rounds", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = modules["report"].read_result(out)
    assert [case["case"]["part"] for case in found["cases"]] == ["attention", "attention", "layer"]
    for case in found["cases"]:
        assert [row["heads"] for row in case["rows"]] == [1, 2, 4, 8, 1]
        assert case["rows"][-1]["name"] == "reference (again)"
        for row in case["rows"]:
            assert row["heads"] * row["head_dim"] == 64
            assert row["score_count"] == row["heads"] * 16**2
            assert row["error"] <= case["tolerance"]
