"""The benchmarks over the number of heads and over the length: outputs, work, a quick run."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.benchmark_modules import BENCHMARKS, ROOT, imported

SIBLINGS = ("harness", "heads", "limits", "oracle", "parts", "provenance", "report")


@pytest.fixture(scope="module")
def modules():
    """The modules as the script imports them; gone afterwards."""
    with imported(SIBLINGS) as loaded:
        yield loaded


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


def test_outputs_and_work_of_the_parts(modules):
    from mha_book.costs import attention_size, feed_forward_parameter_count, forward_matmul_flops

    parts = modules["parts"]
    inputs = parts.inputs_of(7, d_model=12, heads=3, hidden=10)
    expected = parts.expected_of(inputs)
    for name, run in parts.parts_of(inputs).items():
        output = run()
        outputs = output if isinstance(output, list) else [output]
        assert modules["harness"].largest_error(outputs, expected[name]) < parts.TOLERANCE
    flops = parts.flops_of(7, d_model=12, heads=3, hidden=10)
    whole = forward_matmul_flops(attention_size(12, 3), token_count=7, pair_count=49)
    assert flops["projections"] + flops["attention"] == whole
    assert flops["feed-forward"] == 14 * feed_forward_parameter_count(12, 10, is_gated=False)


def quick_run(modules, name, out):
    command = [sys.executable, str(BENCHMARKS / name), "--quick", "--rounds", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return modules["report"].read_result(out)


def test_quick_run_over_heads(modules, tmp_path):
    found = quick_run(modules, "heads.py", tmp_path / "quick.json")
    assert [case["case"]["part"] for case in found["cases"]] == ["attention", "attention", "layer"]
    for case in found["cases"]:
        assert [row["heads"] for row in case["rows"]] == [1, 2, 4, 8, 1]
        assert case["rows"][-1]["name"] == "reference (again)"
        for row in case["rows"]:
            assert row["heads"] * row["head_dim"] == 64
            assert row["score_count"] == row["heads"] * 16**2
            assert row["error"] <= case["tolerance"]


def test_quick_run_over_lengths(modules, tmp_path):
    found = quick_run(modules, "parts.py", tmp_path / "quick.json")
    assert [case["case"]["length"] for case in found["cases"]] == [8, 16]
    for case in found["cases"]:
        names = [row["name"] for row in case["rows"]]
        assert names == [
            "projections",
            "feed-forward",
            "attention",
            "feed-forward (again)",
            "projections (again)",
        ]
