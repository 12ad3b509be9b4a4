"""The ring over several processes, by the command that a reader types; one of them dies."""

import subprocess
import sys
from typing import Any

import pytest

from experiments.processes import GRACE


def run(*arguments: str) -> Any:
    command = [sys.executable, "-m", "experiments.ring_processes", "--length", "48", *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=600)


def test_processes_agree_with_one() -> None:
    done = run("--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for number, places in enumerate(("0-11 36-47", "12-23 24-35")):
        first, second = [line for line in lines if line.startswith(f"process {number}:")]
        # Half of 48 · 49 / 2 pairs; 2 key heads, keys and values of width 8 in float32, once.
        sent = 2 * 2 * 8 * 24 * 4
        assert f"positions {places}, 588 of 1176 pairs, sends {sent} bytes" in first
        assert "differ by at most" in second
    assert lines[-1].startswith("2 processes agree with one")


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2])
def test_a_process_that_dies_leaves_nobody_waiting(number: int) -> None:
    done = run("--processes", "3", "--fail", str(number))
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"process {number} died (exit code 9): the others were ended ")
    assert int(last.split(" s later")[0].split()[-1]) <= GRACE + 1
    assert f"process {number}: dies here" in done.stdout
