"""The reference attention: by hand first, then against the loops, then its properties."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    attend,
    attend_with_lse,
    attention_weights,
    causal,
    padding,
    scaled_dot_product_attention,
    sliding_window,
)
from tests import oracles
from tests.jaxprs import shapes
from tests.oracles import draw

B, N, K, T, S, H, C = 2, 6, 2, 5, 7, 3, 11

with_lse = jax.jit(functools.partial(attend_with_lse, implementation="reference"))
weights_of = jax.jit(attention_weights, static_argnames="is_causal")


def operands(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    return (
        draw(B, N, T, H, seed=1, dtype=dtype),
        draw(B, K, S, H, seed=2, dtype=dtype),
        draw(B, K, S, C, seed=3, dtype=dtype),
    )


# --- by hand ------------------------------------------------------------------------------------


def test_identity_by_hand() -> None:
    """Scores are 1/√2 on the diagonal and 0 beside it."""
    identity = jnp.eye(2)
    weights = attention_weights(identity, identity)
    expected = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + 1)
    by_hand = [[expected, 1 - expected], [1 - expected, expected]]
    np.testing.assert_allclose(weights, by_hand, rtol=1e-6)


def test_log_sum_exp_by_hand() -> None:
    """Two equal scores of ln 3 sum to 6."""
    one, score = jnp.ones((2, 1)), jnp.full((1, 1), math.log(3.0))
    _, lse = with_lse(score, one, one)
    np.testing.assert_allclose(lse, [math.log(6.0)], rtol=1e-6)


@pytest.mark.parametrize("size, dtype", [(1e3, "float32"), (1e5, "float32"), (1e15, "float32"),
                                         (1e6, "bfloat16")])  # fmt: skip
def test_scores_far_beyond_the_range_of_exp(size: float, dtype: str) -> None:
    """Scores up to 10^30; compiled too, where a product may be joined with the subtraction.

    Of width 18, whose scale is no power of two.
    """
    query, key = (size * draw(2, 64, 18, seed=n, dtype=dtype) for n in range(2))
    expected = (np.asarray(query, np.float64) @ np.asarray(key, np.float64).mT).argmax(-1)
    for softmax in (attention_weights, weights_of):
        weights = softmax(query, key)
        np.testing.assert_array_equal(weights.argmax(-1), expected)
        np.testing.assert_allclose(weights.max(-1), np.ones((2, 64)), rtol=1e-6)
        np.testing.assert_allclose(weights.sum(-1), np.ones((2, 64)), rtol=1e-6)


@pytest.mark.parametrize("name", ["reference", "blockwise", "decode", "splash"])
def test_a_soft_cap_by_hand(name: str) -> None:
    """Scores 0 and 30·artanh(ln 3 / 30) become 0 and ln 3: weights 1 : 3, and their slopes."""
    cap, capped = 30.0, math.log(3.0)
    key = jnp.array([[0.0], [cap * math.atanh(capped / cap)]])[None]
    query, value = jnp.ones((1, 1, 1)), jnp.array([[[4.0], [8.0]]])

    def call(query: jax.Array) -> jax.Array:
        return attend(query, key, value, scale=1.0, logit_softcap=cap, implementation=name)

    found, slope = jax.value_and_grad(lambda q: call(q).sum())(query)
    np.testing.assert_allclose(found, 7.0, rtol=1e-5)
    # dO/dS = A (V - O) = 3/4 of the second key, and the slope of the cap there
    expected = 0.75 * (8.0 - 7.0) * (1 - (capped / cap) ** 2) * float(key[0, 1, 0])
    np.testing.assert_allclose(slope[0, 0, 0], expected, rtol=1e-4)


# --- the oracle itself --------------------------------------------------------------------------


@pytest.mark.parametrize("with_mask", [False, True])
def test_gradients_of_the_oracle_are_those_of_its_forward_loop(with_mask: bool) -> None:
    rng = np.random.default_rng(5)
    shapes = {"query": (4, 3, 2), "key": (2, 5, 2), "value": (2, 5, 3), "bias": (4, 3, 5)}
    inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    inputs["scale"] = np.array(0.6)
    visible = rng.random((4, 3, 5)) < 0.6 if with_mask else np.array(True)
    d_output, d_lse = rng.standard_normal((4, 3, 3)), rng.standard_normal((4, 3))
    if with_mask:
        visible[1, 2] = False
    got = oracles.attention_gradients(
        **inputs, visible=visible, d_output=d_output, d_lse=d_lse
    )._asdict()
    for name in inputs:

        def loss(x: np.ndarray, name: str = name) -> float:
            output, lse, _ = oracles.attention(**{**inputs, name: x}, visible=visible)
            return float(np.sum(output * d_output) + np.sum(np.where(lse > -1e9, lse, 0) * d_lse))

        expected = oracles.finite_difference(loss, inputs[name])
        np.testing.assert_allclose(got[name], expected, rtol=1e-7, atol=1e-8, err_msg=name)


# --- against the oracle -------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_weights_output_and_lse_against_the_loops() -> None:
    query, key, value = operands("float64")
    bias = draw(1, N, T, S, dtype="float64")
    mask = sliding_window(3, 3) & padding(jnp.array([4, 6]))
    given = {"mask": mask, "bias": bias, "scale": 0.7}
    output, lse = with_lse(query, key, value, **given)
    visible = np.asarray(mask.materialize(T, S))
    expected = oracles.attention(query, key, value, visible, bias, 0.7)
    weights = weights_of(query, key, **given)
    for got, wanted in zip((output, lse, weights), expected, strict=True):
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


# --- dtypes -------------------------------------------------------------------------------------


def test_float16_scores_beyond_its_range() -> None:
    """A score of 90,000 is no number of float16."""
    query = jnp.array([[300.0]], jnp.float16)
    weights = weights_of(query, jnp.array([[300.0], [299.0]], jnp.float16))
    assert weights.tolist() == [[1.0, 0.0]]


# --- cost ---------------------------------------------------------------------------------------


def repeats_keys(function: Callable, *arguments: jax.Array) -> bool:
    """Whether anything as large as keys or values of all query heads is made on the way."""
    sizes = {math.prod(shape) for shape in shapes(function, *arguments)}
    return bool(sizes & {B * N * S * H, B * N * S * C})


def test_no_key_or_value_is_repeated_for_its_group() -> None:
    query, key, value = operands()
    bias, mask = draw(1, N, T, S), padding(jnp.array([4, 6])) & causal()

    def call(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return scaled_dot_product_attention(query, key, value, bias=bias, mask=mask)

    def gradients(*x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.grad(lambda *x: call(*x).sum(), argnums=(0, 1, 2))(*x)

    def repeating(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return call(query, *(jnp.repeat(x, N // K, axis=1) for x in (key, value)))

    assert not repeats_keys(call, query, key, value)
    assert not repeats_keys(gradients, query, key, value)
    assert repeats_keys(repeating, query, key, value)  # the gate can see it
