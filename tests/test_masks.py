"""Masks: what they allow, how they combine and travel, and the emptying of what nobody sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import Mask, array_mask, causal, padding, segments, sliding_window
from mha_book.attention.blocks import key_ranges
from mha_book.costs import visible_pair_count
from mha_book.masks import as_mask, visibility
from mha_book.multihead.cache import append, cache_mask, init_cache

B, N, K, T, S, H = 2, 6, 2, 5, 7, 3


def drawn(mask: Mask, rows: int = 3, columns: int = 4) -> list[str]:
    return ["".join(".x"[int(v)] for v in row) for row in mask.materialize(rows, columns).tolist()]


@pytest.mark.parametrize(
    "mask, expected",
    [
        (Mask(), ["xxxx", "xxxx", "xxxx"]),
        (causal(), ["x...", "xx..", "xxx."]),
        (causal(1), ["xx..", "xxx.", "xxxx"]),
        (causal(-1), ["....", "x...", "xx.."]),
        (sliding_window(2, 0), ["x...", "xx..", ".xx."]),
        (sliding_window(1, 1), ["xx..", ".xx.", "..xx"]),
        (sliding_window(2), ["x...", "xx..", ".xx."]),  # never the future by default
        (sliding_window(2, None), ["xxxx", "xxxx", ".xxx"]),
        (sliding_window(None, 1), ["xx..", "xxx.", "xxxx"]),
        (sliding_window(None, None), ["xxxx", "xxxx", "xxxx"]),
        (sliding_window(2, 0, query_offset=1), ["xx..", ".xx.", "..xx"]),
        (sliding_window(2) & causal(), ["x...", "xx..", ".xx."]),
        (padding(jnp.array(2)), ["xx..", "xx..", "xx.."]),
        (padding(jnp.array(4), jnp.array(1)), ["xxxx", "....", "...."]),
        (padding(jnp.array(0)), ["....", "....", "...."]),
        (array_mask(jnp.array([[True, False, True, True]])), ["x.xx", "x.xx", "x.xx"]),
    ],
)
def test_by_hand(mask: Mask, expected: list[str]) -> None:
    assert drawn(mask) == expected


@pytest.mark.parametrize("offset", [2**31 - 1, -(2**31), 2**31 + 5, -(2**40), 10**30])
def test_bounds_as_far_as_one_likes(offset: int) -> None:
    """A window of as many keys, or a query as late, hides all or nothing, by blocks as well."""
    sees_all = offset > 0
    for mask in (causal(offset), sliding_window(None, 0, offset), sliding_window(6, None, -offset)):
        assert bool(mask.materialize(4, 6).all()) == sees_all
        assert bool(mask.materialize(4, 6).any()) == sees_all
        ranges = key_ranges(mask, (), 4, 6)
        assert (ranges.stop - ranges.start).tolist() == [6 * sees_all] * 4
    wide = sliding_window(abs(offset), abs(offset))
    assert wide.materialize(4, 6).all()


@pytest.mark.parametrize("offset", [2**31 - 1, 2**31 - 3, -(2**31), 2**30])
def test_offsets_in_an_array_as_far_as_they_go(offset: int) -> None:
    sees_all, offsets = offset > 0, jnp.array([offset])
    for mask in (causal(offsets), sliding_window(None, 3, offsets)):
        assert bool(mask.materialize(4, 6).all()) == bool(mask.materialize(4, 6).any()) == sees_all
        ranges = key_ranges(mask, (1,), 4, 6)
        assert np.ravel(ranges.stop - ranges.start).tolist() == [6 * sees_all] * 4
    assert bool(sliding_window(6, None, offsets).materialize(4, 6).any()) != sees_all


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_offsets_of_any_width(dtype: str) -> None:
    """In the dtype of the offsets, 100 and 100 would be -56."""
    mask = sliding_window(101, 100, jnp.array([100, 0], dtype))
    distance = np.arange(300)[None] - np.arange(3)[:, None]
    for found, offset in zip(mask.materialize(3, 300)[:, 0], (100, 0), strict=True):
        np.testing.assert_array_equal(found, abs(distance - offset) <= 100)
    both = causal(jnp.array([100], dtype)) & sliding_window(None, 200)
    assert both.materialize(1, 300).sum() == 101


@pytest.mark.parametrize(
    "mask, parts",
    [
        (Mask(), set()),
        (causal(), {"causal"}),
        (causal(2), {"band"}),
        (causal(jnp.array(0)), {"offsets"}),  # not known before it runs
        (sliding_window(3, 0), {"window"}),
        (padding(jnp.array([2])), {"lengths"}),
        (Mask(query_lengths=jnp.array([2])), {"lengths"}),
        (array_mask(jnp.ones((1, 1), bool)), {"array"}),
        (causal() & padding(jnp.array([2])), {"causal", "lengths"}),
        (sliding_window(2) & array_mask(jnp.ones((1, 1), bool)), {"window", "array"}),
    ],
)
def test_parts(mask: Mask, parts: set[str]) -> None:
    assert mask.kinds == parts


EVERYTHING = (
    causal(jnp.array([1, 0]))
    & sliding_window(3, 1)
    & padding(jnp.array([3, 6]), jnp.array([5, 2]))
    & array_mask(jnp.ones((2, 3, T, S), bool))
)


def test_crosses_jit_as_an_argument() -> None:
    materialize = jax.jit(lambda mask: mask.materialize(T, S))
    for mask in (causal(), causal(2), EVERYTHING):
        np.testing.assert_array_equal(materialize(mask), mask.materialize(T, S))


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (causal(), "causal"),
        (causal(np.int64(0)), "causal"),
        (sliding_window(np.int32(3)), "window"),
        (causal(2), "band"),
        (causal() & padding(jnp.array([2, 3])), "causal"),
    ],
)
def test_a_mask_keeps_its_kind_through_every_transformation(mask: Mask, kind: str) -> None:
    seen = []

    def look(mask: Mask) -> jax.Array:
        seen.append(mask.kinds)
        return mask.materialize(2, 3)

    jax.jit(look)(mask)
    jax.vmap(look, axis_size=2)(mask)
    jax.lax.scan(lambda carry, _: (carry, look(carry)), mask, None, length=2)
    assert len(seen) == 3
    assert all(
        kind in parts and not {"band", "causal", "window"} - {kind} & parts for parts in seen
    )


def test_a_mask_has_no_truth_value() -> None:
    """``causal() and padding(n)`` would be the second alone."""
    for wrong in (
        lambda: causal() and causal(),
        lambda: causal() or causal(),
        lambda: not causal(),
    ):
        with pytest.raises(TypeError, match="expected &, "):
            wrong()


def test_structure_compares_and_hashes_and_arrays_refuse() -> None:
    assert causal() & sliding_window(3) == sliding_window(3)
    assert len({causal(), causal(np.int64(0)), causal(1), ~causal()}) == 3
    assert causal() != (causal() | causal(1))
    assert causal() != "causal"
    for asked in (lambda mask: mask == mask, hash, lambda mask: causal() == mask):
        with pytest.raises(TypeError, match="mask: expected a mask without arrays to be"):
            asked(padding(jnp.array([2])))


def test_a_window_is_as_many_keys_everywhere() -> None:
    """As ``visible_pair_count`` and a cache count them: the query's own key is one of them."""
    for window in range(1, 6):
        mask = sliding_window(window).materialize(9, 9)
        assert mask.sum(-1).max() == window
        assert int(mask.sum()) == visible_pair_count(9, 9, window=window)
        cache = init_cache(1, 1, window + 2, 1, window=window)
        for _ in range(9):
            cache = append(cache, jnp.ones((1, 1, 1, 1)), jnp.ones((1, 1, 1, 1)))
        assert int(cache_mask(cache, 1).materialize(1, window + 2).sum()) == window


def test_segments() -> None:
    ids, key_ids = np.array([[4, 4, -1, 7, 4], [0, 1, 1, 1, 2]]), np.arange(B * S).reshape(B, S) % 5
    mask = causal(1) & segments(jnp.asarray(ids), jnp.asarray(key_ids, jnp.int8))
    assert mask.kinds == {"band", "segments"}
    seen = mask.materialize(T, S)
    for b, i, j in np.ndindex(B, T, S):
        assert bool(seen[b, 0, i, j]) == (ids[b, i] == key_ids[b, j] and j <= i + 1)
    other = segments(jnp.asarray(ids % 2), jnp.asarray(key_ids % 3))
    both = np.asarray(mask.materialize(T, S)) & np.asarray(other.materialize(T, S))
    for combined in (mask & other, other & mask):
        np.testing.assert_array_equal(combined.materialize(T, S), both)
        np.testing.assert_array_equal(
            visibility(as_mask(combined, False, SHAPE), None, SHAPE), both
        )
    each = jax.vmap(lambda mask: mask.materialize(T, S))(mask & other)
    np.testing.assert_array_equal(each, both[:, 0])
    packed = segments(jnp.array([7, 7, 4])).materialize(3, 3)
    assert packed.astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("mask", [causal(5), causal(jnp.array([0, 1])), sliding_window(3, 1)])
def test_is_causal_drops_no_offset(mask: Mask) -> None:
    with pytest.raises(ValueError, match="is_causal: expected False beside a mask"):
        as_mask(mask, True, SHAPE)
    assert as_mask(sliding_window(3) & ~causal(-2), True, SHAPE).upper == 0


SHAPE = (B, N, T, S)
