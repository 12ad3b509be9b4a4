"""Separate and fused parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import FusedMultiHeadParams, MultiHeadParams, fuse, init_multi_head, unfuse
from mha_book.multihead.parameters import check_params


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


def test_order_is_queries_keys_values() -> None:
    params = drawn()
    fused = fuse(params)
    for start, weight, bias in ((0, "w_q", "b_q"), (6, "w_k", "b_k"), (8, "w_v", "b_v")):
        width = getattr(params, weight).shape[1]
        part = slice(start, start + width)
        np.testing.assert_array_equal(fused.w_qkv[:, part], getattr(params, weight))
        np.testing.assert_array_equal(fused.b_qkv[part], getattr(params, bias))


def test_an_output_bias_alone_survives() -> None:
    params = drawn(use_bias=False)._replace(b_o=jnp.arange(10.0))
    jax.tree.map(np.testing.assert_array_equal, unfuse(fuse(params)), params)


def test_under_jit_and_grad() -> None:
    params = drawn()
    jax.tree.map(np.testing.assert_array_equal, jax.jit(fuse)(params), fuse(params))
    gradients = jax.grad(lambda p: sum(jnp.sum(x) for x in jax.tree.leaves(fuse(p))))(params)
    jax.tree.map(lambda g: np.testing.assert_array_equal(g, np.ones(g.shape)), gradients)


def test_check_params_lets_what_fits_pass() -> None:
    check_params(drawn())
    check_params(drawn(value_dim=5))
    check_params(unfuse(FusedMultiHeadParams(jnp.ones((4, 6, 2)), jnp.ones((2, 2, 4)))))
