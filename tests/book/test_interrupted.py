"""What the tool that runs notebooks leaves when it is stopped."""

import os
import subprocess
import sys

import pytest

from tests.book.extensions import tool


@pytest.mark.skipif(os.name != "posix", reason="Windows has a handle on the parent")
def test_a_kernel_whose_parent_died_before_it_stood_ends(tmp_path):
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(tmp_path / "kernel.json")]
    command += tool("refresh").KERNEL_ARGUMENTS
    environ = {**os.environ, "JPY_PARENT_PID": str(2**22)}  # more than any process has
    assert subprocess.run(command, env=environ, capture_output=True, timeout=60).returncode == 1
