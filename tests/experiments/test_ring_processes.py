"""The ring over several processes, by the command that a reader types."""

import subprocess
import sys
from typing import Any


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
