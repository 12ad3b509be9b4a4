"""Attention for few queries: what the contract suite, with its many queries, does not see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import Mask, attend, attend_with_lse, padding
from tests import oracles

B, N, K, S, H, C = 2, 6, 2, 13, 5, 7


def operands(num_queries: int = 1, dtype: str = "float32") -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(5)
    shapes = ((B, N, num_queries, H), (B, K, S, H), (B, K, S, C))
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def decode(*arrays: jax.Array, **options: object) -> jax.Array:
    return attend(*arrays, implementation="decode", **options)


LENGTHS = np.array([4, 11], np.int32)


def test_one_query_against_float64_with_poison_where_nobody_looks() -> None:
    query, key, value = operands()
    seen = np.arange(S) < LENGTHS[:, None]
    visible = np.broadcast_to(seen[:, None, None, :], (B, N, 1, S))
    expected, expected_lse, _ = oracles.attention(query, key, value, visible)
    key, value = (
        jnp.where(seen[:, None, :, None], x, bad) for x, bad in ((key, jnp.inf), (value, jnp.nan))
    )
    call = jax.jit(functools.partial(attend_with_lse, implementation="decode"))
    output, lse = call(query, key, value, mask=padding(jnp.asarray(LENGTHS)))
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5)


def test_a_poisoned_row_does_not_touch_the_others() -> None:
    query, key, value = operands()
    value = value.at[0, 0, 2].set(jnp.nan)  # that all queries of this head and entry see
    output = decode(query, key, value, mask=padding(jnp.asarray(LENGTHS)))
    clean = decode(*operands(), mask=padding(jnp.asarray(LENGTHS)))
    assert np.isnan(output[0, :3]).all()
    np.testing.assert_allclose(output[0, 3:], clean[0, 3:], atol=1e-6)
    np.testing.assert_allclose(output[1], clean[1], atol=1e-6)


@pytest.mark.optimized
def test_nothing_of_the_size_of_the_keys_is_written() -> None:
    """The reference writes keys and values anew to empty them; here nothing of their size.

    The keys are stored transposed, as the cache has them; the other way round some versions of XLA
    write them anew in this order.
    """
    shapes = ((1, 16, 1, 64), (1, 8, 64, 4096), (1, 8, 4096, 64))
    query, keys, value = (jnp.zeros(shape) for shape in shapes)
    mask = padding(jnp.array([100], jnp.int32))

    def temporary(implementation: str) -> int:
        def call(query: jax.Array, keys: jax.Array, value: jax.Array, mask: Mask) -> jax.Array:
            turned = jnp.swapaxes(keys, -1, -2)
            return attend(query, turned, value, mask=mask, implementation=implementation)

        compiled = jax.jit(call).lower(query, keys, value, mask).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary("decode") < keys.nbytes / 4
    assert temporary("reference") >= keys.nbytes


def test_a_program_has_it_without_a_call() -> None:
    """Across one, XLA gives a cache that is appended to another order on a GPU, all of it twice."""
    query, key = jnp.ones((1, 2, 1, 4)), jnp.ones((1, 2, 8, 4))
    assert "decode_attention" not in jax.jit(decode).lower(query, key, key).as_text()
