"""The same numbers as jax.nn, Flax, Equinox and torch give, on shared operands and weights.

Where a peer differs by design (an empty row, the polarity of a mask), the difference is shown.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mha_book import (
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
    padding,
)
from mha_book.multihead.parameters import MultiHeadParams

B, T, S, N, H = 2, 5, 7, 6, 3
D = N * H

pytestmark = pytest.mark.loose_promotion


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), jnp.float32)


def drawn_params(num_kv_heads: int = N, use_bias: bool = True) -> MultiHeadParams:
    params = init_multi_head(jax.random.key(0), D, N, num_kv_heads=num_kv_heads, use_bias=use_bias)
    leaves, structure = jax.tree.flatten(params)  # that differ, of one shape too
    drawn = [0.4 * draw(*x.shape, seed=n + 3) for n, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, drawn)


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


# --- jax.nn -------------------------------------------------------------------------------------

# --- Flax and Equinox ----------------------------------------------------------------------------


def flax_layer(params: MultiHeadParams) -> Any:
    layer = nnx.MultiHeadAttention(num_heads=N, in_features=D, decode=False, rngs=nnx.Rngs(0))
    for name, part in (("q", layer.query), ("k", layer.key), ("v", layer.value), ("o", layer.out)):
        part.kernel[...] = getattr(params, f"w_{name}")
        part.bias[...] = getattr(params, f"b_{name}")
    return lambda x, z, mask: layer(x, z, mask=mask)


def equinox_layer(params: MultiHeadParams) -> Any:
    """Equinox keeps matrices as (out, in), takes no batch, and one mask for all heads."""
    biases = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
    layer = eqx.nn.MultiheadAttention(N, D, **biases, key=jax.random.key(0))
    shapes = {"q": "query_proj", "k": "key_proj", "v": "value_proj", "o": "output_proj"}
    for name, part in shapes.items():
        new = getattr(params, f"w_{name}").reshape(D, D).T, getattr(params, f"b_{name}").reshape(D)
        at = lambda m, part=part: (getattr(m, part).weight, getattr(m, part).bias)  # noqa: E731
        layer = eqx.tree_at(at, layer, new)
    return jax.vmap(lambda x, z, mask: layer(x, z, z, mask=mask[0]))


@pytest.mark.parametrize("peer", [flax_layer, equinox_layer])
def test_layers_of_jax(peer: Any) -> None:
    params, x, z = drawn_params(), draw(B, T, D), draw(B, S, D, seed=1)
    mask = draw(B, 1, T, S, seed=5) > -0.5
    close(multi_head_attention(params, x, z, mask=mask), peer(params)(x, z, mask))


# --- torch --------------------------------------------------------------------------------------


def tensor(x: jax.Array) -> Any:
    import torch

    return torch.tensor(np.asarray(x))  # a copy, which torch may write to


def torch_layer(params: MultiHeadParams) -> Any:
    """``torch.nn.MultiheadAttention`` with these weights: (out, in), Q, K and V stacked."""
    import torch

    layer = torch.nn.MultiheadAttention(D, N, bias=params.b_q is not None, batch_first=True)
    stacked = [getattr(params, f"w_{name}").reshape(D, D).T for name in "qkv"]
    with torch.no_grad():
        layer.in_proj_weight.copy_(tensor(jnp.concatenate(stacked)))
        layer.out_proj.weight.copy_(tensor(params.w_o.reshape(D, D).T))
        if params.b_q is not None:
            biases = [getattr(params, f"b_{name}").reshape(D) for name in "qkv"]
            layer.in_proj_bias.copy_(tensor(jnp.concatenate(biases)))
            layer.out_proj.bias.copy_(tensor(params.b_o))
    return layer.eval()


@pytest.mark.needs_torch
@pytest.mark.parametrize("use_bias", [False, True])
def test_torch_layer(use_bias: bool) -> None:
    params, x, z = drawn_params(use_bias=use_bias), draw(B, T, D), draw(B, S, D, seed=1)
    layer = torch_layer(params)
    output, weights = layer(*map(tensor, (x, z, z)), average_attn_weights=False)
    ours, inside = multi_head_attention_with_intermediates(params, x, z)
    close(ours, output.detach().numpy())
    close(inside.weights, weights.detach().numpy())


@pytest.mark.needs_torch
def test_torch_layer_has_the_opposite_polarity() -> None:
    """There True = do not attend, in ``attn_mask`` and in ``key_padding_mask``."""
    params, x, z = drawn_params(), draw(B, T, D), draw(B, S, D, seed=1)
    layer = torch_layer(params)
    attend_to = draw(T, S, seed=5) > -0.5
    lengths = jnp.array([4, 7])
    padded = jnp.arange(S).reshape(1, S) >= lengths.reshape(B, 1)  # (B, S), True = padding

    def theirs(mask: jax.Array) -> np.ndarray:
        output, _ = layer(
            *map(tensor, (x, z, z)), attn_mask=tensor(mask), key_padding_mask=tensor(padded)
        )
        return output.detach().numpy()

    ours = multi_head_attention(params, x, z, mask=padding(lengths))
    close(ours, theirs(jnp.zeros((T, S), bool)))
    mask = attend_to.reshape(1, 1, T, S) & ~padded.reshape(B, 1, 1, S)
    ours = multi_head_attention(params, x, z, mask=mask)
    close(ours, theirs(~attend_to))
    assert not np.allclose(ours, theirs(attend_to), atol=1e-3)
