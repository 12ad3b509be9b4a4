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


def test_the_shapes_of_the_notes() -> None:
    assert split_heads(jnp.zeros((2, 10, 64)), 8).shape == (2, 8, 10, 8)
    assert combine_heads(jnp.zeros((2, 8, 10, 8))).shape == (2, 10, 64)


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


def test_a_reshape_alone_is_another_thing() -> None:
    x = numbered(5, 6)
    wrong = x.reshape(2, 5, 3)
    assert wrong.shape == split_heads(x, 2).shape
    assert not (wrong == split_heads(x, 2)).all()


small = st.integers(1, 5)


@hypothesis.given(batch=st.lists(small, max_size=2), num_heads=small, length=small, width=small)
@hypothesis.settings(max_examples=20)
def test_inverse_of_each_other(batch: list[int], num_heads: int, length: int, width: int) -> None:
    x = np.arange(np.prod([*batch, length, num_heads * width])).reshape(*batch, length, -1)
    heads = split_heads(jnp.asarray(x), num_heads)
    assert heads.shape == (*batch, num_heads, length, width)
    np.testing.assert_array_equal(combine_heads(heads), x)
    np.testing.assert_array_equal(split_heads(combine_heads(heads), num_heads), heads)


@pytest.mark.parametrize("dtype", ["bool", "int32", "bfloat16", "float16", "float32"])
def test_any_dtype_stays(dtype: str) -> None:
    x = numbered(2, 6).astype(dtype)
    assert split_heads(x, 3).dtype == x.dtype
    assert combine_heads(split_heads(x, 3)).dtype == x.dtype


def test_under_transformations() -> None:
    x = numbered(2, 5, 6).astype(jnp.float32)
    expected = split_heads(x, 3)
    np.testing.assert_array_equal(jax.jit(split_heads, static_argnums=1)(x, 3), expected)
    np.testing.assert_array_equal(jax.vmap(lambda row: split_heads(row, 3))(x), expected)
    gradient = jax.grad(lambda x: (split_heads(x, 3) * expected).sum())(x)
    np.testing.assert_array_equal(gradient, x)  # a permutation: its transpose is its inverse


def test_one_head_and_heads_of_width_one() -> None:
    x = numbered(5, 3)
    np.testing.assert_array_equal(split_heads(x, 1), x[None])
    np.testing.assert_array_equal(split_heads(x, 3), x.T[..., None])


def test_heads_first_is_its_own_inverse() -> None:
    x = numbered(2, 5, 3, 7)
    assert heads_first(x, "NTH") is x
    assert heads_first(x, "TNH").shape == (2, 3, 5, 7)
    np.testing.assert_array_equal(heads_first(heads_first(x, "TNH"), "TNH"), x)
