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


@pytest.mark.needs_torch
def test_torch_function_has_heads_first_and_true_for_attend(inputs):
    import torch

    q, k, v, mask, bias = (torch.tensor(np.asarray(x)) for x in inputs)
    attention = torch.nn.functional.scaled_dot_product_attention
    for key, extra in (("mask", mask), ("bias", bias)):
        ours = scaled_dot_product_attention(*inputs[:3], **{key: jnp.asarray(extra.numpy())})
        theirs = attention(q, k, v, attn_mask=extra, enable_gqa=True)
        np.testing.assert_allclose(theirs.numpy(), ours, atol=2e-6)


@pytest.mark.needs_torch
def test_torch_layer_has_the_opposite_mask_and_averages_the_weights():
    import torch

    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(N * H, N).eval()
    assert layer.in_proj_weight.shape == (3 * N * H, N * H)
    x = torch.randn(T, B, N * H)  # positions before the batch by default
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)  # True = do not attend
    with torch.no_grad():
        out, weights = layer(x, x, x, attn_mask=hidden)
        _, each = layer(x, x, x, attn_mask=hidden, average_attn_weights=False)
    assert out.shape == (T, B, N * H)
    assert weights.shape == (B, T, T)
    assert each.shape == (B, N, T, T)
    np.testing.assert_allclose(weights, each.mean(1), atol=1e-6)
    assert (weights[:, hidden] == 0).all()
    assert (weights[:, ~hidden] > 0).all()
