"""The ring over several processes, by the command that a reader types; one of them dies."""

import subprocess
import sys
import time
from typing import Any

import pytest

from mha_book.sharding.demo import launch
from mha_book.sharding.processes import GRACE


def run(*arguments: str) -> Any:
    command = [sys.executable, "-m", "mha_book.sharding.demo", *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=600)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_agree_with_one(processes: int) -> None:
    done = run("--processes", str(processes), "--length", "48")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for number in range(processes):
        own = [line for line in lines if line.startswith(f"process {number}:")]
        first, last = 24 // processes * number, 48 - 24 // processes * (number + 1)
        assert f"positions {first}-" in own[0]
        assert f" {last}-" in own[0]
        assert own[0].split(", ")[1] == f"{48 * 49 // 2 // processes} of {48 * 49 // 2} pairs"
        # Two key heads, keys and values of width 8 in float32, P - 1 times around.
        sent = (processes - 1) * 2 * 2 * 8 * 48 // processes * 4
        assert own[0].endswith(f"sends {sent} bytes")
        assert "differ by at most" in own[1]
    assert lines[-1].startswith(f"{processes} processes agree with one")


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2])
def test_a_process_that_dies_leaves_nobody_waiting(number: int) -> None:
    start = time.monotonic()
    done = run("--processes", "3", "--length", "48", "--fail", str(number))
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"process {number} died (exit code 9): the others were ended ")
    assert int(last.split(" s later")[0].split()[-1]) <= GRACE + 1
    assert f"process {number}: dies here" in done.stdout
    assert time.monotonic() - start < 240  # the start of JAX, three times on two cores


def test_wrong_numbers_are_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="processes: expected a positive integer; got 0"):
        launch(0)
    with pytest.raises(ValueError, match="length: expected a multiple of 6, two stretches for"):
        launch(3, length=64)
    with pytest.raises(ValueError, match="fail: expected the number of a process, 0 to 1; got 2"):
        launch(2, fail=2)
