"""Which positions a device holds, and how many pairs it computes: against counting them."""

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.sharding import Placement, balance, make_placement, place, restore
from mha_book.sharding.placement import PLACEMENTS, as_placement, local_bounds
from mha_book.sharding.ring import ring_schedule

BANDS = [(None, None), (None, 0), (-5, 0), (-3, 7), (2, None), (None, -1), (-100, 3), (0, 0)]
OWN = Placement("own", ((4, 0), (8, 20), (12, 16)), 1, 4)  # stretches in no order at all


def visible(queries: np.ndarray, keys: np.ndarray, lower: int | None, upper: int | None):
    between = keys[None, :] - queries[:, None]
    low = np.full(between.shape, True) if lower is None else between >= lower
    return low if upper is None else low & (between <= upper)


def placements(length: int = 48) -> list[Placement]:
    named = [make_placement(name, length, d) for name in PLACEMENTS for d in (1, 2, 4, 8)]
    return [*named, OWN]


def test_by_hand() -> None:
    # Six positions on three devices, and twelve for zigzag.
    assert make_placement("contiguous", 6, 3).positions.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert make_placement("striped", 6, 3).positions.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert make_placement("zigzag", 6, 3).positions.tolist() == [[0, 5], [1, 4], [2, 3]]
    # Causal, contiguous: 3 pairs of one's own, and 4 with each device before.
    pairs = balance(make_placement("contiguous", 6, 3), upper=0).pairs
    assert pairs.tolist() == [[3, 3, 3], [0, 4, 4], [0, 0, 4]]
    assert balance(make_placement("zigzag", 6, 3), upper=0).pairs.tolist() == [
        [3, 3, 3], [2, 2, 2], [2, 2, 2]
    ]  # fmt: skip


@pytest.mark.parametrize("placement", placements(), ids=lambda p: f"{p.name}-{p.devices}")
def test_every_position_once_and_back(placement: Placement) -> None:
    assert sorted(placement.positions.reshape(-1)) == list(range(placement.length))
    x = jnp.arange(3.0 * placement.length).reshape(placement.length, 3)
    placed = np.asarray(place(x, placement))
    for d, held in enumerate(np.split(placed, placement.devices)):
        assert (held[:, 0] == 3 * placement.positions[d]).all()
    assert (np.asarray(restore(jnp.asarray(placed), placement)) == x).all()


@pytest.mark.parametrize(("lower", "upper"), BANDS)
def test_pairs_are_those_that_one_counts(lower: int | None, upper: int | None) -> None:
    for placement in placements():
        found, held = balance(placement, lower, upper).pairs, placement.positions
        taken = [step.shift for step in ring_schedule(placement, lower, upper)]
        for shift in range(placement.devices):
            counted = [
                visible(held[d], held[d - shift], lower, upper).sum()
                for d in range(placement.devices)
            ]
            assert found[shift].tolist() == counted
            assert shift == 0 or (shift in taken) == (sum(counted) > 0)
            runs = held.reshape(placement.devices, placement.num_runs, -1)
            place, bounds = np.arange(runs.shape[-1]), local_bounds(placement, shift, lower, upper)
            for d, a, b in np.ndindex(bounds.shape[:3]):  # between two runs it is a band again
                expected = visible(runs[d, a], runs[d - shift, b], lower, upper)
                assert (visible(place, place, *bounds[d, a, b].tolist()) == expected).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one of 2 devices and 24 positions; got 3 devices"):
        as_placement(OWN, 24, 2)
    twice = Placement("twice", ((0,), (0,)), 1, 4)
    with pytest.raises(ValueError, match="each position from 0 to 7 once; got twice"):
        as_placement(twice, 8, 2)
