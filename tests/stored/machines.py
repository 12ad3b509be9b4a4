"""What machines did, as far as it follows from shapes or can be done again: memory and rings."""

import functools
import importlib.metadata
from typing import Any

import numpy as np
import pytest

from experiments.pods import HEADS, NAME, PROGRAMS, WIDTH, Program, compile_ring
from tests.stored.files import result


def check_faults(document: dict[str, Any]) -> None:
    """Memory is asked for anew in each call from 16 heads on, and not where the C library keeps it.

    Counting again depends on the kernel and on what the process asked for before.
    """
    found = {
        (kind, heads): np.median(document[kind][f"attention {heads}"]["faults"])
        for kind in ("default", "kept")
        for heads in (8, 16)
    }
    largest = max(found.values())
    assert {place for place, count in found.items() if count > largest / 4} == {("default", 16)}


# Rings compiled for pods.

RINGS = (Program("v5e", 16), Program("v5e", 256, 2**16))


PADDING = 2**12  # tables of results: what XLA adds to the arrays


def check_rings(document: dict[str, Any]) -> None:
    """Arguments, results and what is sent, from the shapes and the order of a ring."""
    assert [Program(**row["program"]) for row in document["programs"]] == [*PROGRAMS]
    for row in document["programs"]:
        program = Program(**row["program"])
        is_forward = program.direction == "forward"
        array = HEADS * program.length // program.chips * WIDTH * 2
        counts = {"arguments": 3, "outputs": 1} if is_forward else {"arguments": 4, "outputs": 4}
        for name, count in counts.items():
            assert 0 <= row["bytes"][name] - count * array < PADDING, name
        # Keys and values, before the loop and in its body; backward once more, and the sums of
        # their gradients in float32, in the body and home.
        calls, size = row["transfers"]["collective-permute"]
        assert (calls, size) == ((4, 4 * array) if is_forward else (14, 18 * array))
        assert row["started"] in (0, calls)


def check_rings_again(document: dict[str, Any]) -> None:
    if importlib.metadata.version("libtpu") != result(NAME)["settings"]["libtpu"]:
        pytest.skip("another libtpu")
    for program in RINGS:
        row = next(r for r in document["programs"] if Program(**r["program"]) == program)
        found = compiled_ring(program)
        assert (found["bytes"], found["started"]) == (row["bytes"], row["started"])
        assert {k: [*v] for k, v in found["transfers"].items()} == row["transfers"]


compiled_ring = functools.cache(compile_ring)
