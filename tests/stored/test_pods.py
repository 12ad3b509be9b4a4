"""Rings compiled for pods: what follows from the shapes, two of them compiled again, forgeries."""

import importlib.metadata
from typing import Any

import pytest

from experiments.pods import HEADS, NAME, PROGRAMS, WIDTH, Program, compile_ring
from tests.stored.files import forged, result

AGAIN = (Program("v5e", 16), Program("v5e", 256, 2**16))
PADDING = 2**12  # tables of results: what XLA adds to the arrays


def check_shapes(document: dict[str, Any]) -> None:
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


def check_again(document: dict[str, Any]) -> None:
    for program in AGAIN:
        row = next(r for r in document["programs"] if Program(**r["program"]) == program)
        found = compile_ring(program)
        for name in ("bytes", "started"):
            assert found[name] == row[name], name
        assert {k: [*v] for k, v in found["transfers"].items()} == row["transfers"]


def compiler_is_the_same() -> bool:
    return importlib.metadata.version("libtpu") == result(NAME)["settings"]["libtpu"]


def test_what_follows_from_the_shapes() -> None:
    check_shapes(result(NAME))


@pytest.mark.needs_libtpu
def test_two_rings_compiled_again() -> None:
    if not compiler_is_the_same():
        pytest.skip("another libtpu")
    check_again(result(NAME))


@pytest.mark.needs_libtpu
def test_forged_temporaries_are_noticed(tmp_path) -> None:
    if not compiler_is_the_same():
        pytest.skip("another libtpu")

    def halve(document: dict[str, Any]) -> None:
        document["programs"][0]["bytes"]["temporaries"] //= 2

    with pytest.raises(AssertionError, match="bytes"):
        check_again(forged(NAME, tmp_path, halve))


def test_forged_sends_and_arguments_are_noticed(tmp_path) -> None:
    def sends(document: dict[str, Any]) -> None:
        document["programs"][0]["transfers"]["collective-permute"][1] //= 2

    def arguments(document: dict[str, Any]) -> None:
        document["programs"][2]["bytes"]["arguments"] *= 2

    for change in (sends, arguments):
        with pytest.raises(AssertionError):
            check_shapes(forged(NAME, tmp_path, change))
