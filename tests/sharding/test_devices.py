"""Sharding on eight devices of a CPU, all of it in one process that these tests share."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.book.extensions import ROOT
from tests.sharding.checks import CHECKS, SLOW, contract
from tests.sharding.contract import full, pairwise


def lines(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run the checks, and yield what each of them reports."""
    command = [sys.executable, "-m", "tests.sharding.checks", *arguments]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    run = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
    return map(json.loads, run.stdout.splitlines())


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    return {report["name"]: report for report in lines()}


@pytest.mark.parametrize("name", [*sorted({*CHECKS} - SLOW), *contract(exhaustive=False)])
def test_on_eight_devices(name: str, reports: dict[str, dict[str, Any]]) -> None:
    assert reports[name]["complaint"] == ""


@pytest.mark.slow
def test_all_meshes_and_all_that_takes_longer() -> None:
    found = list(lines("--all"))
    assert [report for report in found if report["complaint"]] == []
    assert {report["name"] for report in found} == {*CHECKS}


def test_the_pairwise_sample_is_small_and_a_part_of_the_contract() -> None:
    assert 15 <= len(pairwise()) <= 25
    assert {case[:5] for case in pairwise()} <= {case[:5] for case in full()}
    assert len({case[:5] for case in full()}) == len(full()) == 5728


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_full_contract() -> None:
    """Every mesh up to eight devices, method, mask, number of key heads and dtype: hours."""
    found = list(lines("--exhaustive"))
    assert [report for report in found if report["complaint"]] == []
    assert len(found) == len(full())
