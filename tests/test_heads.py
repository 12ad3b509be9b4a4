"""Splitting into heads and combining them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import combine_heads, split_heads
from mha_book.heads import heads_first


def numbered(*shape: int) -> jax.Array:
    return jnp.arange(np.prod(shape)).reshape(shape)


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


def test_heads_first_is_its_own_inverse() -> None:
    x = numbered(2, 5, 3, 7)
    assert heads_first(x, "NTH") is x
    assert heads_first(x, "TNH").shape == (2, 3, 5, 7)
    np.testing.assert_array_equal(heads_first(heads_first(x, "TNH"), "TNH"), x)


def test_heads_are_combined_position_by_position() -> None:
    heads = np.arange(12.0, dtype=np.float32).reshape(2, 3, 2)
    combined = combine_heads(jnp.asarray(heads))
    np.testing.assert_array_equal(combined, np.concatenate([heads[0], heads[1]], axis=-1))
