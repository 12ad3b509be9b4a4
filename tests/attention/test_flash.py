"""The kernel to learn from, interpreted, against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import scaled_dot_product_attention
from mha_book.attention.flash import flash_attention


def operands(length: int, key_length: int, dtype: str = "float32") -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(1), 3)
    shapes = ((3, length, 5), (3, key_length, 5), (3, key_length, 7))
    return tuple(jax.random.normal(key, s, dtype) for key, s in zip(keys, shapes, strict=True))


@pytest.mark.parametrize(
    "lengths, is_causal", [((24, 24), True), ((8, 32), False), ((32, 16), True), ((8, 8), False)]
)
def test_the_kernel_is_the_reference(lengths: tuple[int, int], is_causal: bool) -> None:
    query, key, value = operands(*lengths)
    got = jax.jit(lambda *x: flash_attention(*x, is_causal=is_causal, block=8))(query, key, value)
    expected = scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


def test_half_precision_sums_in_float32() -> None:
    query, key, value = operands(16, 16, "bfloat16")
    got = jax.jit(lambda *x: flash_attention(*x, block=8))(query, key, value)
    exact = scaled_dot_product_attention(*(x.astype(jnp.float32) for x in (query, key, value)))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), exact, rtol=2**-8, atol=2**-10)
