"""What tools leave when they are stopped, or when the clock was moved."""

import os
import subprocess
import sys
import time

import pytest

from tests.book.extensions import tool

DAY = 86400


def test_the_environment_goes_by_content_and_not_by_time(tmp_path, monkeypatch):
    environment = tool("environment")
    built = []
    monkeypatch.setattr(environment, "build", lambda *given: built.append(given))
    monkeypatch.setattr(sys, "argv", ["environment.py", "--venv", str(tmp_path)])
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    stamp = tmp_path / environment.STAMP
    for when in (0, time.time() - 365 * DAY, time.time() + 365 * DAY):
        stamp.write_text(environment.wanted())
        os.utime(stamp, (when, when))
        environment.main()
    assert not built
    stamp.write_text(environment.wanted()[:-9])  # a process that wrote it was killed
    environment.main()
    assert len(built) == 1


@pytest.mark.skipif(os.name != "posix", reason="Windows has a handle on the parent")
def test_a_kernel_whose_parent_died_before_it_stood_ends(tmp_path):
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(tmp_path / "kernel.json")]
    command += tool("refresh").KERNEL_ARGUMENTS
    environ = {**os.environ, "JPY_PARENT_PID": str(2**22)}  # more than any process has
    assert subprocess.run(command, env=environ, capture_output=True, timeout=60).returncode == 1
