"""The gradient of attention by hand: its pieces, the whole, and the two implementations of it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend, attend_with_lse, causal
from mha_book.attention import gradient as manual
from mha_book.attention.gradient import attention_vjp, scores_vjp, softmax_jacobian
from mha_book.attention.operands import prepare
from tests import oracles
from tests.jaxprs import shapes
from tests.oracles import close

pytestmark = pytest.mark.usefixtures("float64")

B, N, K, T, S, H, C = 3, 10, 5, 7, 11, 13, 17  # N = 2 K; else distinct primes
BY_HAND = ("manual", "recompute")


draw = functools.partial(oracles.draw, dtype="float64")


def operands(num_kv_heads: int = K, seed: int = 1) -> dict[str, jax.Array]:
    return {
        "query": draw(B, N, T, H, seed=seed),
        "key": draw(B, num_kv_heads, S, H, seed=seed + 1),
        "value": draw(B, num_kv_heads, S, C, seed=seed + 2),
    }


# --- the pieces ---------------------------------------------------------------------------------


def test_softmax_jacobian_by_hand() -> None:
    """Weights 1/2, 1/3, 1/6: a(1 - a) on the diagonal, -ab beside it."""
    weights = jnp.array([1 / 2, 1 / 3, 1 / 6])
    expected = np.array([[9, -6, -3], [-6, 8, -2], [-3, -2, 5]]) / 36
    close(softmax_jacobian(weights), expected, 1e-15)


@pytest.mark.parametrize("num_kv_heads", [N, K, 1])
def test_scores(num_kv_heads: int) -> None:
    x, scale, d_scores = operands(num_kv_heads), jnp.asarray(0.37), draw(B, N, T, S)

    def forward(query: jax.Array, key: jax.Array, scale: jax.Array) -> jax.Array:
        return scale * jnp.einsum("bhia,bhja->bhij", query, jnp.repeat(key, N // num_kv_heads, 1))

    _, pull = jax.vjp(forward, x["query"], x["key"], scale)
    *got, d_scale = scores_vjp(x["query"], x["key"], d_scores, scale)
    *expected, d_scale_expected = pull(d_scores)
    close(got, expected)
    np.testing.assert_allclose(d_scale, d_scale_expected, rtol=1e-11)


def test_attention_by_hand() -> None:
    """One query, two keys of weight 1/2, values 0 and 1: every gradient on paper."""
    query, key, value = jnp.zeros((1, 1)), jnp.array([[3.0], [5.0]]), jnp.array([[0.0], [1.0]])
    weights, output, d_output = jnp.full((1, 2), 0.5), jnp.full((1, 1), 0.5), jnp.ones((1, 1))
    got = attention_vjp(query, key, value, weights, output, d_output, scale=1.0, bias=weights)
    # dA = (0, 1), r = 1/2, dS = (-1/4, 1/4), dQ = -3/4 + 5/4
    assert got.bias.tolist() == [[-0.25, 0.25]]
    assert got.query.tolist() == [[0.5]]
    assert got.key.tolist() == [[0.0], [0.0]]
    assert got.value.tolist() == [[0.5], [0.5]]
    assert float(got.scale) == 0.0
    assert got.dropout_multiplier is None


# --- the whole, against automatic differentiation -----------------------------------------------


# --- empty rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", BY_HAND)
def test_an_empty_row_takes_any_gradient_of_its_log_sum_exp(implementation: str) -> None:
    """It is -inf there, so that the gradient which comes back may be infinite or NaN."""

    def call(x: dict[str, jax.Array]) -> Any:
        return attend_with_lse(**x, mask=causal(-2), implementation=implementation)[1]

    d_lse = draw(B, N, T).at[..., :2].set(jnp.nan)
    lse, pull = jax.vjp(call, operands())
    assert jnp.isneginf(lse[..., :2]).all()
    (gradients,) = pull(d_lse)
    close(gradients, pull(d_lse.at[..., :2].set(0.0))[0], 1e-15)


# --- the implementations ------------------------------------------------------------------------


def kept_sizes(implementation: str) -> list[int]:
    """How many numbers each array has that waits for the backward pass."""
    _, pull = jax.vjp(
        functools.partial(attend, implementation=implementation), *operands().values()
    )
    return [leaf.size for leaf in jax.tree.leaves(pull)]


def test_what_is_kept_between_the_passes() -> None:
    """One array of N·T·S numbers, or none."""
    pairs = B * N * T * S
    assert kept_sizes("manual").count(pairs) == 1
    assert pairs not in kept_sizes("recompute")
    assert B * N * T in kept_sizes("recompute")


@pytest.mark.parametrize("recompute", [False, True])
def test_no_key_or_value_is_repeated(recompute: bool) -> None:
    def both(query: jax.Array, key: jax.Array, value: jax.Array, d_output: jax.Array) -> Any:
        _, _, saved = manual.forward(prepare(query, key, value), recompute=recompute)
        return manual.backward(saved, d_output)

    made = shapes(both, *operands().values(), draw(B, N, T, C))
    assert not {(B, N, S, H), (B, N, S, C), (B, N, H, S), (B, N, C, S)} & made


@pytest.mark.parametrize("far", [-1e4, -1e30, float(np.finfo(np.float32).min), 1e30])
@pytest.mark.parametrize("name", ["reference", "manual", "recompute", "jax_nn"])
def test_a_row_of_far_scores_has_the_gradients_of_its_softmax(name: str, far: float) -> None:
    """An additive mask may hide all keys of a row: it is their mean, not an empty row."""
    query, key, value, d_output, bias = (
        draw(2, *shape, dtype="float32") for shape in ((3, 4), (5, 4), (5, 4), (3, 4), (3, 5))
    )
    bias = bias.at[0, 1].set(far).at[1, 2, :3].set(far)
    wanted = oracles.attention_gradients(query, key, value, bias=bias, d_output=d_output)
    _, pull = jax.vjp(
        lambda q, k, v, b: attend(q, k, v, bias=b, implementation=name), query, key, value, bias
    )
    atol = 2e-3 if abs(far) < 1e5 else 1e-5  # what rounding leaves of a score beside the bias
    for got, expected in zip(pull(d_output), wanted[:4], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
