"""What the conversion tables of the notation page say of other libraries is so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mha_book.attention.reference import scaled_dot_product_attention

pytestmark = pytest.mark.loose_promotion

B, T, S, N, K, H = 2, 3, 5, 4, 2, 7


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(B, N, T, H)), jnp.float32)
    k, v = (jnp.asarray(rng.normal(size=(B, K, S, H)), jnp.float32) for _ in range(2))
    mask = jnp.asarray(rng.random((B, N, T, S)) < 0.6).at[..., 0].set(True)
    bias = jnp.asarray(rng.normal(size=(B, N, T, S)), jnp.float32)
    return q, k, v, mask, bias


def turned(*arrays):
    return (jnp.swapaxes(x, -3, -2) for x in arrays)


@pytest.mark.parametrize("peer", [jax.nn.dot_product_attention, nnx.dot_product_attention])
def test_jax_and_flax_have_positions_first_and_true_for_attend(inputs, peer):
    q, k, v, mask, bias = inputs
    ours = scaled_dot_product_attention(q, k, v, mask=mask, bias=bias)
    theirs = peer(*turned(q, k, v), mask=mask, bias=bias)
    np.testing.assert_allclose(jnp.swapaxes(theirs, -3, -2), ours, atol=2e-6)


def test_kernels_of_flax_are_heads_apart():
    layer = nnx.MultiHeadAttention(N, N * H, use_bias=False, decode=False, rngs=nnx.Rngs(0))
    assert layer.query.kernel.shape == (N * H, N, H)
    assert layer.out.kernel.shape == (N, H, N * H)
