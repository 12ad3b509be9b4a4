"""Memory of a ring's processes: what the shapes demand, four of them measured again, forgeries."""

import functools
import sys
from typing import Any

import pytest

from experiments.ring_memory import Sizes, measure
from tests.stored.files import forged, result

NAME = "ring-memory.json"
AGAIN = 4
SPREAD = 0.25  # of another number of cores, of another allocator


def check_shapes(document: dict[str, Any]) -> None:
    """No less than its queries, keys, values and output; less on more processes."""
    sizes = Sizes()
    assert document["config"] == {**sizes._asdict(), "processes": [*sizes.processes]}
    largest = []
    for count in sizes.processes:
        rounds = document["memory"][str(count)]
        assert [len(risen) for risen in rounds] == [count] * sizes.rounds
        own = 4 * sizes.heads * sizes.length * sizes.width * 4 // count
        travelling = own // 2 if count > 1 else 0  # keys and values of the next, at the least
        assert all(risen > own + travelling for row in rounds for risen in row)
        largest.append(max(map(max, rounds)))
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 2 * largest[-1]


@functools.cache
def measured() -> int:
    return max(measure(AGAIN, Sizes()))


def check_again(document: dict[str, Any]) -> None:
    for risen in document["memory"][str(AGAIN)]:
        assert abs(max(risen) / measured() - 1) < SPREAD


def test_what_the_shapes_demand() -> None:
    check_shapes(result(NAME))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's mark of the most memory held")
def test_four_processes_measured_again() -> None:
    check_again(result(NAME))


@pytest.mark.parametrize("count", [1, 8])
def test_a_forged_rise_is_noticed(count: int, tmp_path: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        rounds = document["memory"][str(count)]
        document["memory"][str(count)] = [[risen // 6 for risen in round] for round in rounds]

    with pytest.raises(AssertionError):
        check_shapes(forged(NAME, tmp_path, change))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux's mark of the most memory held")
def test_a_rise_forged_within_the_shapes_is_noticed(tmp_path: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        rounds = document["memory"][str(AGAIN)]
        document["memory"][str(AGAIN)] = [[int(risen * 0.65) for risen in r] for r in rounds]

    with pytest.raises(AssertionError):
        check_again(forged(NAME, tmp_path, change))
