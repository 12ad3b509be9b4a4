"""Each command in its quick form, in a process of its own; the command for a GPU."""

import os
import shutil
import subprocess
import sys

import pytest

import plot
from harness import oracle, report
from harness.comparison import installed
from tests.benchmarks.paths import BENCHMARKS, ROOT

TWO = ("--rounds", "2")


def labels(found):
    return [case["case"]["label"] for case in found["cases"]]


def attention(found):
    assert labels(found) == [
        "T=32 full forward N=2 H=16",
        "T=32 full forward+backward N=2 H=16",
        "T=32 causal forward N=2 H=16",
        "T=32 causal forward+backward N=2 H=16",
    ]
    assert {case["checked"] for case in found["cases"]} == {"everything"}
    (alone,) = found["alone"]
    assert (alone["name"], alone["case"]["length"]) == ("blockwise", 64)
    assert alone["memory"]["peak_bytes"] >= alone["memory"]["baseline_bytes"] > 2**20


def decode(found):
    line = found["growth"]["attention"]
    assert len(line["lengths"]) == len(line["seconds"]) == 8
    for shared in found["sharing"].values():
        assert shared["kv_heads"] == [1, 2, 3, 6]
        assert shared["cache_bytes"][-1] == 6 * shared["cache_bytes"][0]


def gradients(found):
    assert labels(found) == [
        "T=32 full forward+backward N=2 H=16",
        "T=32 full 2 layers",
        "T=32 causal forward+backward N=2 H=16",
        "T=32 causal 2 layers",
    ]


def heads(found):
    assert [case["case"]["part"] for case in found["cases"]] == ["attention", "attention", "layer"]


def layer(found):
    assert [case["case"]["is_causal"] for case in found["cases"]] == [False, False, True, True]


def layouts(found):
    parts = {case["case"]["part"] for case in found["cases"]}
    assert parts == {"attention", "layer", "projection"}


def notation(found):
    assert [case["case"]["backward"] for case in found["cases"]] == [False, True]


def overhead(found):
    rows = {row["name"]: row for row in found["cases"][0]["rows"]}
    assert "matmul_flops" in rows["products"]
    assert "matmul_flops" not in rows["a call"]
    assert [row["error"] > 0 for row in rows.values()][:5] == [True, True, True, False, False]


def parts(found):
    assert labels(found) == ["T=8", "T=16"]


def precision(found):
    assert [case["case"]["dtype"] for case in found["cases"]] == ["bfloat16", "float16", "float32"]
    for case in found["cases"]:
        errors = {row["name"]: row["errors"] for row in case["rows"] if row["status"] == "measured"}
        assert {"reference", "blockwise"} <= set(errors)
        for of_row in errors.values():
            assert set(of_row) == {"output", "query", "key", "value"}
            for error in of_row.values():
                assert 0 < error["largest"] < oracle.TOLERANCES[case["case"]["dtype"]]


def pruned(found):
    cases = [(case["case"]["part"], case["case"]["phase"]) for case in found["cases"]]
    every = [(part, phase) for part in ("one layer", "model") for phase in ("prefill", "decode")]
    assert cases == every


def step(found):
    (case,) = found["cases"]
    rows = {row["name"]: row for row in case["rows"]}
    assert all("temp_bytes" in row for row in rows.values() if not row["name"].startswith("read"))
    assert len(found["growth"]["SmolLM2"]["lengths"]) == 4


COMMANDS = {  # what holds of the result, options, rows of the first case
    "attention": (
        attention,
        (*TWO, "--only", "jax.nn", "--alone", "64"),
        ["reference", "jax.nn", "jax.nn, converted", "reference (again)"],
    ),
    "decode": (
        decode,
        TWO,
        ["cache", "cache, step", "keys BKSH", "reference", "jax.nn", "jax.nn, converted"]
        + ["jax.nn cudnn", "torch", "read", "cache (again)"],
    ),
    "gradients": (
        gradients,
        (*TWO, "--depths", "0", "2"),
        ["reference", "manual", "recompute", "reference (again)"],
    ),
    "heads": (
        heads,
        TWO,
        ["reference", "heads=2", "heads=4", "heads=8", "reference (again)"],
    ),
    "layer": (
        layer,
        (*TWO, "--only", "attend", "flax", "tokamax"),
        ["reference", "attend", "attend, fused", "tokamax", "flax", "reference (again)"],
    ),
    "layouts": (
        layouts,
        TWO,
        ["heads first", "positions first", "positions first, converted", "heads first (again)"],
    ),
    "notation": (
        notation,
        TWO,
        ["mha_book layer", "mha_book notation", "mha_book layer, heads first"]
        + ["mha_book layer (again)"],
    ),
    "overhead": (
        overhead,
        TWO,
        ["attend", "attend, not jitted", "formula", "products", "a call", "torch"]
        + ["torch, products", "attend (again)"],
    ),
    "parts": (
        parts,
        TWO,
        ["projections", "feed-forward", "attention", "feed-forward (again)", "projections (again)"],
    ),
    "precision": (precision, (), None),
    "pruned": (
        pruned,
        TWO,
        ["whole", "masked", "heads, pad", "heads, repeat", "groups", "whole (again)"],
    ),
    "step": (
        step,
        TWO,
        ["step", "step, one write", "without append", "without attention", "read", "read weights"]
        + ["step (again)"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_command(name, tmp_path):
    holds, options, names = COMMANDS[name]
    out = tmp_path / "quick.json"
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, check=False, env=env, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = report.read_result(out)
    holds(found)
    assert "--quick" in found["provenance"]["command"]
    timed = found["settings"].get("timed", True)
    for case in found["cases"]:
        for row in case["rows"]:
            if not timed:
                continue
            if row["status"] == "not measured":
                assert not installed(row["package"]) or "cudnn" in row["name"]
            else:
                assert row["error"] <= case["tolerance"]
                assert len(row["seconds_per_round"]) in (2, 4, 6)
        assert not timed or case["rows"][-1]["name"] == f"{case['baseline']} (again)"
    assert names is None or [row["name"] for row in found["cases"][0]["rows"]] == names
    assert plot.main([str(out), "--to", str(tmp_path)]) == 0
    assert (tmp_path / "quick.png").exists() == timed  # else there are no times to draw


def gpu_command(tmp_path, *arguments, **variables):
    env = {**os.environ, "PYTHON": sys.executable, "CACHE": str(tmp_path / "compiled")}
    command = ["sh", str(BENCHMARKS / "gpu.sh"), "--to", str(tmp_path), *arguments]
    env |= variables
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
def test_gpu_command_in_its_quick_form(tmp_path):
    done = gpu_command(tmp_path, "--quick", "heads", "nothing")
    assert done.returncode == 2
    assert "heads: done" in done.stdout, (tmp_path / "heads.log").read_text()
    assert "no step is called nothing" in done.stderr
    found = report.read_result(tmp_path / "heads-gpu.json")
    assert found["settings"]["dtype"] == "bfloat16"
    assert found["provenance"]["environment"]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.8"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
def test_gpu_command_wants_a_gpu(tmp_path):
    done = gpu_command(tmp_path, JAX_PLATFORMS="cpu")
    assert done.returncode == 2
    assert "JAX finds no GPU here" in done.stderr
