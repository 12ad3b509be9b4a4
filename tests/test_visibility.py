"""What a query may see, and the emptying of what nobody sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import Mask, causal, explicit, padding
from mha_book.masks import as_mask, visibility, zero_unattended

B, N, K, T, S, H = 2, 6, 2, 5, 7, 3
SHAPE = (B, N, T, S)


def operands() -> tuple[jax.Array, jax.Array]:
    return jnp.ones((B, N, T, H)), jnp.ones((B, K, S, H))


def test_nothing_hidden_is_none() -> None:
    assert as_mask(None, False, SHAPE) is None
    assert visibility(*operands()) is None


def test_is_causal_is_one_more_mask() -> None:
    assert as_mask(None, True, SHAPE) == causal()
    lengths = jnp.array([3, 4])
    both = as_mask(padding(lengths), True, SHAPE)
    assert both.parts == {"causal", "lengths"}


def test_a_bare_array_is_an_explicit_mask() -> None:
    array = jnp.ones((1, 1, T, S), bool)
    assert as_mask(array, False, SHAPE).array is array


@pytest.mark.parametrize("batch", [(), (B,), (B, 3)])
def test_rank_is_that_of_the_scores(batch: tuple[int, ...]) -> None:
    query, key = jnp.ones((*batch, N, T, H)), jnp.ones((*batch, K, S, H))
    visible = visibility(query, key, mask=causal(1))
    assert visible.shape == (1,) * (len(batch) + 1) + (T, S)
    lengths = jnp.full(batch, 3)
    visible = visibility(query, key, mask=padding(lengths))
    assert visible.shape == (*batch, 1, T, S)


def test_minus_infinity_in_the_bias_hides() -> None:
    bias = jnp.zeros((1, 1, 1, S)).at[..., 2].set(-jnp.inf)
    visible = visibility(*operands(), bias=bias, is_causal=True)
    expected = np.tril(np.ones((T, S), bool))
    expected[:, 2] = False
    np.testing.assert_array_equal(visible[0, 0], expected)


def test_a_finite_bias_hides_nothing() -> None:
    assert visibility(*operands(), bias=jnp.full((1, 1, 1, S), -1e30)).all()


def test_silence_empties_what_the_group_does_not_see() -> None:
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


def test_silence_removes_nan_and_infinity_and_nothing_else() -> None:
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
def test_silence_keeps_the_dtype(dtype: str) -> None:
    visible = jnp.zeros((1, 1, T, S), bool)
    query, key = (x.astype(dtype) for x in operands())
    for array in zero_unattended(query, key, key, visible):
        assert array.dtype == dtype


def test_one_head_without_a_head_axis() -> None:
    visible = explicit(jnp.eye(T, S, dtype=bool)).materialize(T, S)
    key = jnp.ones((S, H)).at[T:].set(jnp.nan)
    _, k, _ = zero_unattended(jnp.ones((T, H)), key, key, visible)
    assert k.any(-1).tolist() == [True] * T + [False] * (S - T)


def test_a_mask_of_lengths_is_checked_against_the_batch() -> None:
    with pytest.raises(ValueError, match=r"mask.key_lengths: expected .*\(2,\); got shape \(3,\)"):
        as_mask(Mask(key_lengths=jnp.array([1, 2, 3])), False, SHAPE)
