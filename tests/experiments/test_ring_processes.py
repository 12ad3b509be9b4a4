"""The ring over several processes, by the command that a reader types."""

import re
import subprocess
import sys


def test_processes_agree_with_one() -> None:
    module = ["-m", "experiments.ring_processes", "--length", "48", "--processes", "2"]
    command, run = [sys.executable, *module], {"text": True, "capture_output": True}
    done = subprocess.run(command, **run, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, places in enumerate(("0-11 36-47", "12-23 24-35")):
        first, second = re.findall(rf"process {number}: .*", done.stdout)
        # Half of 48 · 49 / 2 pairs; 2 key heads, keys and values of width 8 in float32, once.
        sent = 2 * 2 * 8 * 24 * 4
        assert f"positions {places}, 588 of 1176 pairs, sends {sent} bytes" in first
        assert "differ by at most" in second
    assert done.stdout.splitlines()[-1] == "2 processes agree with one"
