"""Masks: what they allow, how they combine and travel, and the emptying of what nobody sees."""

import dataclasses
import functools
import operator

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import Mask, array_mask, causal, padding, sliding_window
from mha_book.attention.blocks import key_ranges
from mha_book.masks import as_mask, visibility, zero_unattended

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


def test_causal_with_an_offset_is_the_end_of_a_longer_square() -> None:
    whole = causal().materialize(S, S)
    np.testing.assert_array_equal(causal(S - 2).materialize(2, S), whole[-2:])


def test_lengths_and_bounds_of_a_batch() -> None:
    lengths, offsets = jnp.array([3, 0]), jnp.array([0, 2])
    mask = padding(lengths, jnp.array([2, 5])) & causal(offsets) & sliding_window(2, 1, offsets)
    array = mask.materialize(T, S)
    assert array.shape == (2, 1, T, S)
    for b, i, j in np.ndindex(2, T, S):
        position = i + int(offsets[b])
        inside = position - 1 <= j <= position
        expected = inside and j < lengths[b] and i < (2, 5)[b]
        assert bool(array[b, 0, i, j]) == expected


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_lengths_of_any_integer_dtype(dtype: str) -> None:
    array = padding(jnp.array([1, 3], dtype)).materialize(1, 4)
    assert array[:, 0, 0].tolist() == [[True, False, False, False], [True, True, True, False]]


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


def test_more_batch_axes() -> None:
    lengths = jnp.array([[1, 2, 3], [4, 5, 6]])
    array = padding(lengths).materialize(T, S)
    assert array.shape == (2, 3, 1, T, S)
    np.testing.assert_array_equal(array.sum(-1)[..., 0, 0], lengths)


masks = st.one_of(
    st.builds(causal, st.integers(-2, 3)),
    st.builds(sliding_window, st.integers(1, 4) | st.none(), st.integers(0, 3) | st.none()),
    st.builds(lambda n: padding(jnp.array([n, 2])), st.integers(0, S)),
    st.builds(lambda k, q: padding(jnp.array([1, k]), jnp.array([q, 3])), *[st.integers(0, 6)] * 2),
    st.builds(lambda n: causal(jnp.array([n, 0])), st.integers(-2, 2)),
    st.builds(
        lambda seed: array_mask(jax.random.bernoulli(jax.random.key(seed), 0.7, (2, 3, T, S))),
        st.integers(0, 9),
    ),
)


@hypothesis.given(st.lists(masks, min_size=1, max_size=4))
@hypothesis.settings(max_examples=30)
def test_combining_is_the_and_of_the_arrays(some: list[Mask]) -> None:
    shape = (2, 3, T, S)
    arrays = [np.broadcast_to(mask.materialize(T, S), shape) for mask in some]
    combined = functools.reduce(operator.and_, some).materialize(T, S)
    np.testing.assert_array_equal(np.broadcast_to(combined, shape), np.all(arrays, axis=0))
    backwards = functools.reduce(operator.and_, some[::-1]).materialize(T, S)
    np.testing.assert_array_equal(combined, backwards)


def test_python_bounds_stay_python() -> None:
    mask = causal() & sliding_window(4, 2)
    assert (mask.lower, mask.upper) == (-3, 0)
    assert (causal() & causal()).kinds == {"causal"}


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


def test_one_compilation_serves_every_offset_that_is_an_array() -> None:
    traces = []

    @jax.jit
    def materialize(mask: Mask) -> jax.Array:
        traces.append(mask)
        return mask.materialize(T, S)

    for offset in range(4):
        mask = causal(jnp.asarray(offset))
        np.testing.assert_array_equal(materialize(mask), causal(offset).materialize(T, S))
    assert len(traces) == 1


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


def test_or_and_not_by_hand() -> None:
    assert drawn(causal() | sliding_window(1, 1)) == ["xx..", "xxx.", "xxxx"]
    assert drawn(~causal()) == [".xxx", "..xx", "...x"]
    assert drawn(~(causal() | padding(jnp.array(2)))) == ["..xx", "..xx", "...x"]
    assert drawn(causal(1) & ~causal()) == [".x..", "..x.", "...x"]


def test_a_mask_has_no_truth_value() -> None:
    """``causal() and padding(n)`` would be the second alone."""
    for wrong in (
        lambda: causal() and causal(),
        lambda: causal() or causal(),
        lambda: not causal(),
    ):
        with pytest.raises(TypeError, match="expected &, "):
            wrong()


def test_vmap_over_lengths() -> None:
    lengths = jnp.array([3, 0, 7])
    mapped = jax.vmap(lambda mask: mask.materialize(T, S))(padding(lengths))
    np.testing.assert_array_equal(mapped, padding(lengths).materialize(T, S)[:, 0])


def test_vmap_over_one_field_alone() -> None:
    mask = causal(1) & padding(jnp.array([3, 0, 7]))
    axes = dataclasses.replace(mask, key_lengths=0)  # an integer bound is structure, no leaf
    mapped = jax.vmap(lambda mask: mask.materialize(T, S), in_axes=(axes,))(mask)
    np.testing.assert_array_equal(mapped, mask.materialize(T, S)[:, 0])


@pytest.mark.parametrize("placeholder", [object(), None, "name", 0.5, (1, 2)])
def test_any_leaf_may_stand_in_a_tree(placeholder: object) -> None:
    leaves, structure = jax.tree.flatten(EVERYTHING)
    assert len(leaves) == 4
    rebuilt = jax.tree.unflatten(structure, [placeholder] * len(leaves))
    assert isinstance(rebuilt, Mask)
    assert rebuilt.array is placeholder


def test_tree_map_and_shapes() -> None:
    assert jax.tree.map(jnp.shape, EVERYTHING).array == (2, 3, T, S)
    shapes = jax.eval_shape(lambda mask: mask & causal(), EVERYTHING)
    assert shapes.key_lengths.shape == (2,)
    named = jax.tree_util.tree_flatten_with_path(EVERYTHING)[0]
    assert [str(path[0]) for path, _ in named][-1] == ".array"


def test_frozen() -> None:
    with pytest.raises(AttributeError):
        causal().upper = 3


SHAPE = (B, N, T, S)


def operands() -> tuple[jax.Array, jax.Array]:
    return jnp.ones((B, N, T, H)), jnp.ones((B, K, S, H))


def test_nothing_hidden_is_none() -> None:
    assert as_mask(None, False, SHAPE) is None
    assert visibility(None, None, SHAPE) is None


def test_is_causal_is_one_more_mask() -> None:
    assert as_mask(None, True, SHAPE) == causal()
    lengths = jnp.array([3, 4])
    both = as_mask(padding(lengths), True, SHAPE)
    assert both.kinds == {"causal", "lengths"}


def test_a_bare_array_is_a_mask() -> None:
    array = jnp.ones((1, 1, T, S), bool)
    assert as_mask(array, False, SHAPE).array is array


@pytest.mark.parametrize("batch", [(), (B,), (B, 3)])
def test_rank_is_that_of_the_scores(batch: tuple[int, ...]) -> None:
    shape = (*batch, N, T, S)
    visible = visibility(causal(1), None, shape)
    assert visible.shape == (1,) * (len(batch) + 1) + (T, S)
    lengths = jnp.full(batch, 3)
    visible = visibility(padding(lengths), None, shape)
    assert visible.shape == (*batch, 1, T, S)


def test_minus_infinity_in_the_bias_hides() -> None:
    bias = jnp.zeros((1, 1, 1, S)).at[..., 2].set(-jnp.inf)
    visible = visibility(causal(), bias, SHAPE)
    expected = np.tril(np.ones((T, S), bool))
    expected[:, 2] = False
    np.testing.assert_array_equal(visible[0, 0], expected)


def test_a_finite_bias_hides_nothing() -> None:
    assert visibility(None, jnp.full((1, 1, 1, S), -1e30), SHAPE).all()


def test_zeroing_empties_what_the_group_does_not_see() -> None:
    """A key lives if one query of one head of its group sees it, and dies for each batch entry."""
    array = np.zeros((B, N, T, S), bool)
    array[0, 1, 2, 3] = True  # head 1 belongs to key head 0
    array[1, 5, 0, 6] = True  # head 5 to key head 1
    query, key = operands()
    value = jnp.ones((B, K, S, 11))
    q, k, v = zero_unattended(query, key, value, jnp.asarray(array))
    assert np.argwhere(q.any(-1)).tolist() == [[0, 1, 2], [1, 5, 0]]
    assert np.argwhere(k.any(-1)).tolist() == [[0, 0, 3], [1, 1, 6]]
    np.testing.assert_array_equal(k.any(-1), v.any(-1))


def test_zeroing_removes_nan_and_infinity_and_nothing_else() -> None:
    query, key = operands()
    key = key.at[:, :, 4:].set(jnp.nan)
    query = query.at[1].set(jnp.inf)
    visible = padding(jnp.array([4, 0])).materialize(T, S)
    q, k, _ = zero_unattended(query, key, key, visible)
    assert (q[0] == 1).all()
    assert (q[1] == 0).all()
    assert (k[0, :, :4] == 1).all()
    assert (k[0, :, 4:] == 0).all()
    assert (k[1] == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_zeroing_keeps_the_dtype(dtype: str) -> None:
    visible = jnp.zeros((1, 1, T, S), bool)
    query, key = (x.astype(dtype) for x in operands())
    for array in zero_unattended(query, key, key, visible):
        assert array.dtype == dtype


def test_one_head_without_a_head_axis() -> None:
    visible = array_mask(jnp.eye(T, S, dtype=bool)).materialize(T, S)
    key = jnp.ones((S, H)).at[T:].set(jnp.nan)
    _, k, _ = zero_unattended(jnp.ones((T, H)), key, key, visible)
    assert k.any(-1).tolist() == [True] * T + [False] * (S - T)


def test_a_mask_of_lengths_is_checked_against_the_batch() -> None:
    with pytest.raises(ValueError, match=r"mask.key_lengths: expected .*\(2,\); got shape \(3,\)"):
        as_mask(Mask(key_lengths=jnp.array([1, 2, 3])), False, SHAPE)


@pytest.mark.parametrize("broad", [jnp.array([0, 2], jnp.int32), np.array([0, 2], np.int64)])
def test_offsets_of_two_dtypes_are_combined(broad: jax.Array | np.ndarray) -> None:
    """With no implicit promotion and no warning, as everywhere in these tests."""
    narrow = jnp.array([1, -1], jnp.int8)
    both = Mask(upper=narrow) & Mask(upper=broad)
    np.testing.assert_array_equal(both.upper, [0, -1])
    np.testing.assert_array_equal((Mask(upper=broad) & Mask(upper=narrow)).upper, [0, -1])
