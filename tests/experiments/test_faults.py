"""What was stored of faults, and the parts of it that a minute can do again."""

import json
from pathlib import Path

import pytest

from experiments import faults
from mha_book.storage import read_result

STORED = Path(__file__).parents[1] / "data" / "faults.json"


def holds(found: dict) -> None:
    """Nothing was lost: what every run of the experiment has to show."""
    assert found["killed"]["kills"] >= 1
    assert found["killed"]["differing"] == 0
    assert found["two_writers"] == {"statuses": [0, 0], "same_bits": True}
    assert found["read_only"]["status"] != 0
    assert found["read_only"]["said"] in (
        "PermissionError",
        "NotADirectoryError",
        "FileExistsError",
    )
    assert found["full_disk"]["status"] != 0
    assert found["full_disk"]["said"].startswith("OSError: [Errno")
    assert not [name for name in found["full_disk"]["left_behind"] if "partial" in name]
    assert found["full_disk"]["resumed_to_the_same_bits"]
    soaked(found["soak"])


def soaked(found: dict) -> None:
    assert found["finite"]
    assert set(found["programs"]) == {1}, "it was compiled again"
    assert found["positions_reached"] == found["tokens"] > found["window"]
    assert found["growth_MB"] < 20


def test_what_was_stored_lost_nothing() -> None:
    found = read_result(STORED)
    holds(found)
    assert found["soak"]["tokens"] >= 100_000


@pytest.mark.slow
def test_a_short_soak() -> None:
    soaked(faults.soak(300))


@pytest.mark.slow
def test_the_faults_again(tmp_path: Path) -> None:
    faults.main(["--kills", "2", "--tokens", "2000", "--output", str(tmp_path / "faults.json")])
    holds(json.loads((tmp_path / "faults.json").read_text()))
