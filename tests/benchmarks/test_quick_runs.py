"""Benchmarks in their quick form, a third of them at a time; the command for a GPU, whole."""

import importlib
import os
import subprocess
import sys

import pytest

from harness.comparison import installed
from mha_book.storage import read_result
from tests.benchmarks.paths import BENCHMARKS, ROOT
from tests.turns import in_turn

COMMANDS = {
    "attention": ("--only", "jax.nn", "--memory"),
    **dict.fromkeys(("decode", "heads", "layouts", "pruned"), ()),
}
TURNS = [pytest.param(name, marks=in_turn(name)) for name in COMMANDS]


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_what_it_imports_is_there(path):
    importlib.import_module(path.stem)


@pytest.mark.parametrize("name", TURNS)
def test_the_quick_form_measures_what_is_installed(name, tmp_path):
    options, out = COMMANDS[name], tmp_path / "quick.json"
    given = ("--rounds", "2", *options) if options is not None else ()
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--out", str(out), *given]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    found = read_result(out)
    assert "--quick" in found["provenance"]["command"]
    for case in found["cases"]:
        for row in case["rows"]:
            if row["status"] != "measured":
                assert not installed(row["package"]) or "cudnn" in row["name"] or options is None
            elif options is not None:
                assert row["error"] <= case["tolerance"]
                assert len(row["seconds_per_round"]) in (2, 4, 6)


@pytest.mark.slow
def test_the_gpu_command_runs_every_step(tmp_path):
    """On a CPU, in tiny sizes: each line of the script, the contract suite too."""
    env = {**os.environ, "PYTHON": sys.executable, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
    env["CACHE"] = os.environ["JAX_COMPILATION_CACHE_DIR"]
    env["LIMIT"] = "3600"  # of a step: a slow machine fails nothing here
    command = ["sh", str(BENCHMARKS / "gpu.sh"), "--to", str(tmp_path)]
    run = {"capture_output": True, "text": True, "check": False, "env": env}
    done = subprocess.run([*command, "--quick"], **run)
    logs = {path.stem: path.read_text() for path in tmp_path.glob("*.log")}
    assert done.returncode == 0, logs
    steps = ["contract", "attention", "attention-64", "decode", "layouts", "heads"]
    assert sorted(logs) == sorted(steps)
    for step in steps[1:]:
        found = read_result(tmp_path / f"{step}-gpu.json")
        assert found["provenance"]["environment"]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.8"
    unknown = subprocess.run([*command, "--quick", "nothing"], **run)
    assert (unknown.returncode, unknown.stderr) == (2, "error: no step is called nothing\n")
    run["env"] = {**env, "JAX_PLATFORMS": "cpu"}
    assert "JAX finds no GPU here" in subprocess.run(command, **run).stderr
