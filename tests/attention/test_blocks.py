"""Intervals of keys, against the materialized mask."""

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.attention.blocks import attended_keys, key_ranges
from mha_book.masks import Mask, causal, padding, sliding_window
from tests.jaxprs import largest

B, T, S = 3, 7, 11
MASKS = {
    "none": None,
    "causal": causal(),
    "causal, offset": causal(4),
    "causal, negative offset": causal(-2),
    "causal, far offset": causal(-20),
    "offset by entry": causal(jnp.array([1, -3, 30])),
    "window": sliding_window(3, 1),
    "window, offset": sliding_window(2, 0, query_offset=5),
    "window from the left": sliding_window(None, 2, query_offset=jnp.array([0, -1, 8])),
    "window from the right": sliding_window(3, None),
    "lengths": padding(jnp.array([11, 0, 4]), jnp.array([7, 3, 0])),
    "all": causal(1) & sliding_window(4, query_offset=2) & padding(jnp.array([9, 2, 5])),
}


@pytest.mark.parametrize("name", MASKS)
def test_key_ranges_are_the_mask(name: str) -> None:
    mask = MASKS[name]
    rows = key_ranges(mask, (B,), T, S)
    visible = np.broadcast_to((Mask() if mask is None else mask).materialize(T, S), (B, 1, T, S))[
        :, 0
    ]
    j = np.arange(S)
    start, stop = (np.broadcast_to(x, (B, T))[..., None] for x in rows)
    np.testing.assert_array_equal((start <= j) & (j < stop), visible)
    seen = np.broadcast_to(attended_keys(rows, S), (B, S))
    np.testing.assert_array_equal(seen, visible.any(-2))
    assert not rows.start[rows.stop == 0].any()


def test_one_batch_entry_or_many() -> None:
    assert key_ranges(causal(), (), 2, 3).stop.tolist() == [1, 2]
    assert key_ranges(causal(), (2, 1), 2, 3).stop.tolist() == [[[1, 2]]]  # all see the same
    offsets = jnp.array([[0], [1]])
    assert key_ranges(causal(offsets), (2, 1), 2, 3).stop.tolist() == [[[1, 2]], [[2, 3]]]


def test_nothing_of_the_size_of_the_scores() -> None:
    assert largest(lambda n: key_ranges(causal(n), (B,), T, S), jnp.zeros(B, jnp.int32)) == B * T
