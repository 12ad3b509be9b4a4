"""Sharding on eight devices of a CPU, all of it in one process that these tests share."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.book.extensions import ROOT
from tests.sharding.checks import chosen


def run(*arguments: str) -> dict[str, Any]:
    """Run the checks, and return what each of them reports."""
    command = [sys.executable, "-m", "tests.sharding", *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def reports(request: Any) -> dict[str, Any]:
    """Run the checks that are asked for in this session."""
    here = (item for item in request.session.items if item.path == request.path)
    return run(*(item.callspec.params["name"] for item in here if hasattr(item, "callspec")))


@pytest.mark.parametrize("name", chosen(is_slow=False))
def test_on_eight_devices(name: str, reports: dict[str, Any]) -> None:
    assert reports[name]["complaint"] == ""


@pytest.mark.slow
def test_what_takes_longer() -> None:
    found = run("--slow")
    assert [report for report in found.values() if report["complaint"]] == []
    assert found.keys() == chosen(is_slow=True).keys()
