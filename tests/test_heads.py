"""Splitting into heads and combining them."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import combine_heads, split_heads
from mha_book.heads import heads_first


def numbered(*shape: int) -> jax.Array:
    return jnp.arange(np.prod(shape)).reshape(shape)


def test_by_hand() -> None:
    x = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])  # (T, N·H) = (3, 2·2)
    expected = [[[1, 2], [5, 6], [9, 10]], [[3, 4], [7, 8], [11, 12]]]
    assert split_heads(x, 2).tolist() == expected
    assert combine_heads(jnp.array(expected)).tolist() == x.tolist()


@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (1, 5, 2)])
def test_every_entry_goes_where_the_formula_says(batch: tuple[int, ...]) -> None:
    num_heads, length, width = 3, 5, 7
    x = numbered(*batch, length, num_heads * width)
    heads = split_heads(x, num_heads)
    for place in np.ndindex(*batch):
        for h in range(num_heads):
            for i in range(length):
                for a in range(width):
                    assert heads[(*place, h, i, a)] == x[(*place, i, h * width + a)]


small = st.integers(1, 5)


@hypothesis.given(batch=st.lists(small, max_size=2), num_heads=small, length=small, width=small)
@hypothesis.settings(max_examples=20)
def test_inverse_of_each_other(batch: list[int], num_heads: int, length: int, width: int) -> None:
    x = np.arange(np.prod([*batch, length, num_heads * width])).reshape(*batch, length, -1)
    heads = split_heads(jnp.asarray(x), num_heads)
    assert heads.shape == (*batch, num_heads, length, width)
    np.testing.assert_array_equal(combine_heads(heads), x)
    np.testing.assert_array_equal(split_heads(combine_heads(heads), num_heads), heads)


def test_heads_first_is_its_own_inverse() -> None:
    x = numbered(2, 5, 3, 7)
    assert heads_first(x, "NTH") is x
    assert heads_first(x, "TNH").shape == (2, 3, 5, 7)
    np.testing.assert_array_equal(heads_first(heads_first(x, "TNH"), "TNH"), x)
