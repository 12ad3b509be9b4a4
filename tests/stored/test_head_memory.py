"""Page faults of attention with many heads, counted again; forgeries that the count catches.

Times cannot be counted again. That memory is asked for anew in each call from 16 heads on, and not
where the C library keeps it, can: under glibc, whose settings the experiment changes.
"""

import functools
import platform
from typing import Any

import numpy as np
import pytest

from experiments import head_memory
from tests.stored.files import forged, result

NAME = "head-memory.json"
SLICE = head_memory.Sizes(heads=(8, 16), long=32, rounds=15, least_seconds=0.0)
PLACES = [(kind, heads) for kind in ("default", "kept") for heads in SLICE.heads]


def faults(document: dict[str, Any]) -> dict[tuple[str, int], float]:
    return {
        (kind, heads): float(np.median(document[kind][f"attention {heads}"]["faults"]))
        for kind, heads in PLACES
    }


@functools.cache
def counted() -> dict[tuple[str, int], float]:
    found = {kind: head_memory.run_process(SLICE, kind == "kept") for kind in ("default", "kept")}
    return faults(found)


def many(found: dict[tuple[str, int], float]) -> set[tuple[str, int]]:
    """Where there are many page faults; how many depends on the size of a page."""
    largest = max(found.values())
    return {place for place, count in found.items() if largest > 4 and count > largest / 4}


def check_derived(document: dict[str, Any]) -> None:
    """What the file says beside times: as many rounds everywhere, and whole blocks of memory."""
    sizes = head_memory.Sizes()
    rows = [row for kind in ("default", "kept") for row in document[kind].values()]
    assert len(rows) == 2 * (4 * len(sizes.heads) + 2)
    for row in rows:
        assert len(row["seconds"]) == len(row["faults"]) == sizes.processes * sizes.rounds
        assert min(row["seconds"]) > 0
    pages = 2 * 16 * sizes.length**2 * 4 / 4096  # scores and weights of 16 heads
    assert 0.95 < faults(document)["default", 16] / pages < 1.05


def check_counted(document: dict[str, Any]) -> None:
    assert many(faults(document)) == many(counted()) == {("default", 16)}


def test_the_file_is_whole():
    check_derived(result(NAME))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
def test_page_faults_counted_again():
    check_counted(result(NAME))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
@pytest.mark.parametrize("kind, heads, count", [("kept", 16, 8193.0), ("default", 8, 8193.0),
                                                ("default", 16, 0.0)])  # fmt: skip
def test_forged_faults_are_caught(kind, heads, count, tmp_path):
    def change(document):
        row = document[kind][f"attention {heads}"]
        row["faults"] = [count for _ in row["faults"]]

    with pytest.raises(AssertionError):
        check_counted(forged(NAME, tmp_path, change))
