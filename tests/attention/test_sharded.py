"""Sharded batches and heads over eight devices; the devices have to be asked for at the start."""

import os
import subprocess
import sys

import pytest

from tests.book.extensions import ROOT


@pytest.mark.parametrize(
    ("options", "lines"),
    [(["--quick"], 3 + 1), pytest.param([], 2 * (3 * 2 * 3 + 1) + 1, marks=pytest.mark.slow)],
)
def test_over_eight_devices_nothing_is_gathered(options: list[str], lines: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.attention.sharded", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        text=True,
        capture_output=True,
        check=False,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
    assert len(run.stdout.splitlines()) == lines
