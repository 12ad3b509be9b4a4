"""The table of conventions is what the implementations that are installed do."""

import pytest

from experiments.conventions import REPRODUCTIONS, SUBJECTS, installed, measure, reproduced
from experiments.shared import stored
from tests.conftest import IN_CI

TABLE = stored("conventions.json")
ROWS, DEFECTS = TABLE["rows"], TABLE["defects"]


def absent(package):
    if not installed(package) and not IN_CI:
        pytest.skip(f"no {package}: make peers")


def test_the_table_has_every_subject_and_ten_packages():
    assert ROWS.keys() == SUBJECTS.keys()
    assert len({row["package"] for row in ROWS.values()}) >= 10
    assert len(DEFECTS) == len(REPRODUCTIONS)


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.loose_promotion
@pytest.mark.parametrize("name", ROWS)
def test_each_row_again(name):
    absent(ROWS[name]["package"])
    found = measure(name)
    assert found == ROWS[name] | {"version": found["version"]}


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.loose_promotion
@pytest.mark.parametrize("what", DEFECTS)
def test_each_reproduction_prints_the_same(what):
    absent(DEFECTS[what]["package"])
    assert reproduced(DEFECTS[what]["code"]) == DEFECTS[what]["prints"]
