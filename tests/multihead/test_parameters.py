"""Parameters: how they start; separate and fused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, fuse, init_multi_head, unfuse
from mha_book.multihead.parameters import xavier_uniform


def drawn(use_bias: bool = True, num_kv_heads: int = 2, **sizes: int) -> MultiHeadParams:
    params = init_multi_head(
        jax.random.key(1), 10, 6, num_kv_heads=num_kv_heads, head_dim=3, use_bias=use_bias, **sizes
    )
    rng = np.random.default_rng(1)  # biases start at zero, which would hide an exchange
    return jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), x.dtype), params)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_there_and_back_exactly(num_kv_heads: int, use_bias: bool) -> None:
    params = drawn(use_bias, num_kv_heads)
    fused = fuse(params)
    assert fused.w_qkv.shape == (10, 6 + 2 * num_kv_heads, 3)
    assert (fused.b_qkv is None) == (not use_bias)
    jax.tree.map(np.testing.assert_array_equal, unfuse(fused), params)
    jax.tree.map(np.testing.assert_array_equal, fuse(unfuse(fused)), fused)


def test_xavier_bounds_and_variance() -> None:
    """Uniform on ±L has the variance L²/3."""
    limit = math.sqrt(6 / (300 + 500))
    w = xavier_uniform(jax.random.key(0), 300, 500, (300, 5, 100), jnp.float32)
    assert w.shape == (300, 5, 100)
    assert float(abs(w).max()) <= limit
    assert float(abs(w).max()) > 0.999 * limit
    np.testing.assert_allclose(w.var(), limit**2 / 3, rtol=0.02)
    np.testing.assert_allclose(w.mean(), 0.0, atol=0.002)


def test_fans_are_those_of_the_whole_matrix() -> None:
    """One head's columns are a part of W_Q, not a matrix with a fan of its own."""
    params = init_multi_head(jax.random.key(0), 96, 8, num_kv_heads=2)
    for weight, fan_out in ((params.w_q, 96), (params.w_k, 24), (params.w_v, 24)):
        limit = math.sqrt(6 / (96 + fan_out))
        assert 0.98 * limit < float(abs(weight).max()) <= limit
    limit = math.sqrt(6 / (96 + 96))
    assert 0.98 * limit < float(abs(params.w_o).max()) <= limit


def test_the_four_weights_are_drawn_independently() -> None:
    params = init_multi_head(jax.random.key(0), 6, 2)
    flat = [np.ravel(w) for w in params[:4]]
    for n, one in enumerate(flat):
        for other in flat[n + 1 :]:
            assert not np.isclose(one, other).any()
