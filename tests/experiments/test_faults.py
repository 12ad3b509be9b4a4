"""What was stored of faults, and the parts of it that a minute can do again."""

import json
from pathlib import Path

import pytest

from experiments import faults
from mha_book.storage import read_result

PHASES = ("before_its_first_checkpoint", "between_checkpoints", "in_a_write")
STORED = Path(__file__).parents[1] / "data" / "faults.json"


def lost_nothing(found: dict) -> None:
    """What every run of the experiment has to show."""
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


def told_all(found: dict) -> None:
    """Where kills met training, what the disk had room for, what became of clocks and notebooks."""
    killed, full = found["killed"], found["full_disk"]
    assert killed["kills"] == sum(killed[phase] for phase in PHASES)
    assert killed["checkpoints_read"] + killed["none_to_read"] == killed["kills"]
    assert (full["left_behind"], full["step_of_the_checkpoint_left"]) in ((["run"], 1), ([], None))
    for name, days in (("set_back", 365), ("set_ahead", -365)):
        clock = found["clock_moved"][name]
        assert clock == {"status": 0, "days_back": clock["days_back"], "same_bits": True}
        assert abs(clock["days_back"] - days) <= 1, "the clock was not moved"
    for notebooks in found["notebooks"].values():
        assert notebooks["kills"] == sum(notebooks["by_signal"].values()) >= 1
        for lost in ("neither_old_nor_new", "processes_left", "did_not_end"):
            assert notebooks[lost] == 0, lost
        assert notebooks["finished_at_last"]


def soaked(found: dict) -> None:
    assert found["finite"]
    assert set(found["programs"]) == {1}, "it was compiled again"
    assert found["positions_reached"] == found["tokens"] > found["window"]
    assert found["growth_MB"] < 20


def test_what_was_stored_lost_nothing() -> None:
    found = read_result(STORED)
    lost_nothing(found)
    told_all(found)
    assert found["soak"]["tokens"] >= 100_000
    assert found["full_disk"]["kind"] == "tmpfs"
    assert found["killed"]["kills"] >= 50
    for phase in PHASES:
        assert found["killed"][phase] >= 5, phase
    for notebooks in found["notebooks"].values():
        assert notebooks["kills"] >= 12
        assert {*notebooks["by_signal"]} == {"SIGKILL", "SIGTERM", "SIGINT"}
    assert found["notebooks"]["executed"]["with_a_kernel"] >= 5


@pytest.mark.slow
def test_a_short_soak() -> None:
    soaked(faults.soak(300))


@pytest.mark.slow
def test_the_faults_again(tmp_path: Path) -> None:
    short = ["--kills", "2", "--steps", "6", "--stops", "3", "--tokens", "2000"]
    short += ["--work", str(tmp_path), "--output", str(tmp_path / "faults.json")]
    faults.main(short)
    found = json.loads((tmp_path / "faults.json").read_text())
    lost_nothing(found)
    told_all(found)
