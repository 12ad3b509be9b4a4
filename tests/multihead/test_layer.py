"""The layer: by hand first, then against the loops, then its properties."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    attention_weights,
    causal,
    combine_heads,
    fuse,
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
    padding,
)
from mha_book.multihead.layer import project_heads
from mha_book.multihead.parameters import MultiHeadParams
from tests import oracles
from tests.oracles import draw

B, T, S, D, N, K, H, C = 2, 5, 7, 10, 6, 2, 3, 11

# Jitted, since one by one the operations of each new shape compile anew, which takes longer.
layer = jax.jit(multi_head_attention, static_argnames=("is_causal", "implementation"))


def drawn_params(
    use_bias: bool = True, value_dim: int = C, dtype: str = "float32"
) -> MultiHeadParams:
    params = init_multi_head(
        jax.random.key(0), D, N, num_kv_heads=K, head_dim=H, value_dim=value_dim, use_bias=use_bias
    )
    leaves, structure = jax.tree.flatten(params)  # keys and values that differ, of one shape too
    drawn = [0.5 * draw(*x.shape, seed=n + 1, dtype=dtype) for n, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, drawn)


def close(got: jax.Array, expected: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


# --- against the oracle -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, use_bias",
    [("self", False), ("cross", True), ("cross with values", False), ("causal", True),
     ("everything", True)],
)  # fmt: skip
def test_against_the_loops(kind: str, use_bias: bool) -> None:
    params = drawn_params(use_bias)
    inputs, given = {"query": draw(B, T, D)}, {}
    visible: np.ndarray | bool = True
    if kind in ("cross", "cross with values", "everything"):
        inputs["key"] = draw(B, S, D, seed=2)
    if kind in ("cross with values", "everything"):
        inputs["value"] = draw(B, S, D, seed=3)
    if kind == "causal":
        given, visible = {"is_causal": True}, np.tril(np.ones((T, T), bool))
    if kind == "everything":
        mask = padding(jnp.array([4, 0])) & causal(1)
        given = {"mask": mask, "bias": draw(1, N, T, S), "scale": 0.7, "gates": draw(N)}
        visible = np.asarray(mask.materialize(T, S))
    others = {name: x for name, x in given.items() if name in ("bias", "scale", "gates")}
    expected = oracles.layer(params, **inputs, visible=visible, **others)
    close(layer(params, **inputs, **given), expected)


# --- fused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_bias", [False, True])
def test_fused_equals_separate(use_bias: bool) -> None:
    params = drawn_params(use_bias, value_dim=H)
    x, z = draw(B, T, D), draw(B, S, D, seed=2)
    for inputs in ((x,), (x, z), (x, z, 2.0 * z)):
        separate = layer(params, *inputs)
        close(layer(fuse(params), *inputs), separate)


def test_fused_self_attention_projects_once() -> None:
    params, x = drawn_params(False, value_dim=H), draw(B, T, D)
    products = [
        str(jax.make_jaxpr(multi_head_attention)(p, x)).count("dot_general")
        for p in (params, fuse(params))
    ]
    assert products[1] == products[0] - 2


# --- looking inside -----------------------------------------------------------------------------


def test_intermediates() -> None:
    params, x, z = drawn_params(), draw(B, T, D), draw(B, S, D, seed=2)
    given = {"mask": padding(jnp.array([4, 6])), "bias": draw(1, N, T, S), "scale": 0.7}
    gates = draw(N)
    plain = layer(params, x, z, gates=gates, **given)
    look = jax.jit(multi_head_attention_with_intermediates)
    output, inside = look(params, x, z, gates=gates, **given)
    np.testing.assert_array_equal(output, plain)  # looking changes nothing
    close(inside.query, project_heads(x, params.w_q, params.b_q), 1e-6)
    close(inside.key, project_heads(z, params.w_k, params.b_k), 1e-6)
    close(inside.value, project_heads(z, params.w_v, params.b_v), 1e-6)
    close(inside.weights, attention_weights(*inside[:2], **given), 1e-6)
    assert inside.weights.shape == (B, N, T, S)
    lifted = jnp.repeat(inside.value, N // K, axis=1)
    close(inside.head_outputs, inside.weights @ lifted)
    gated = inside.head_outputs * gates.reshape(1, N, 1, 1)
    close(output, combine_heads(gated) @ params.w_o.reshape(N * C, D) + params.b_o.reshape(1, 1, D))


# --- transformations and dtypes -----------------------------------------------------------------


def test_half_precision_over_weights_of_full_precision() -> None:
    """What training in mixed precision does: float32 weights, computed in half precision."""
    params, x, dtype = drawn_params(), draw(B, T, D), "bfloat16"
    mixed = functools.partial(multi_head_attention, is_causal=True, dtype=dtype)
    output = mixed(params, x.astype(dtype))
    cast = jax.tree.map(lambda w: w.astype(dtype), params)
    expected = multi_head_attention(cast, x.astype(dtype), is_causal=True)
    assert output.dtype == dtype
    np.testing.assert_array_equal(output, expected)
    gradient = jax.eval_shape(jax.grad(lambda p: mixed(p, x).astype(jnp.float32).sum()), params)
    assert {g.dtype for g in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}
    with pytest.raises(ValueError, match="query: expected the dtype of the weights, float32"):
        multi_head_attention(params, x.astype(dtype))


def test_a_key_that_is_the_query_is_given_all_the_same() -> None:
    """What a call means hangs on the arguments given, eagerly as under jit."""
    params, x = init_multi_head(jax.random.key(0), 8, 2), jnp.ones((2, 5, 8))
    angles = jnp.zeros((5, 2))
    for call in (multi_head_attention, jax.jit(multi_head_attention)):
        with pytest.raises(ValueError, match="angles: expected self-attention: no key"):
            call(params, x, x, angles=angles)
        assert call(params, x, angles=angles).shape == x.shape
