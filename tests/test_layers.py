"""Normalisation, activation and linear maps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.layers import gelu, layer_norm, rms_norm, swiglu
from tests.oracles import draw


def test_layer_norm_against_numpy() -> None:
    x, weight, bias = draw(2, 3, 11), draw(11), draw(11) + 1.0
    wide = np.asarray(x, np.float64)
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)  # the default of the field
    normalised = (wide - wide.mean(-1, keepdims=True)) / deviation
    expected = normalised * np.asarray(weight) + np.asarray(bias)
    np.testing.assert_allclose(layer_norm(x, weight, bias), expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_takes_half_precision_sums_in_float32() -> None:
    """The square of 300 is beyond float16."""
    x = jnp.array([-300.0, 300.0], jnp.float16)
    got = layer_norm(x, jnp.ones(2, jnp.float16), jnp.zeros(2, jnp.float16))
    assert got.dtype == jnp.float16
    assert got.tolist() == [-1.0, 1.0]


def test_gelu_is_the_exact_form() -> None:
    x = jnp.linspace(-4.0, 4.0, 17)
    expected = [float(v) * 0.5 * (1 + math.erf(float(v) / math.sqrt(2))) for v in x]
    np.testing.assert_allclose(gelu(x), expected, rtol=1e-5, atol=1e-6)
    tanh_form = jax.nn.gelu(x, approximate=True)
    assert float(abs(tanh_form - jnp.asarray(expected)).max()) > 1e-4  # the two can be told apart


def test_rms_norm_against_plain_loops() -> None:
    rng = np.random.default_rng(5)
    x, weight = rng.normal(size=(2, 3, 5)), rng.normal(size=5)
    expected = np.empty_like(x)
    for row in np.ndindex(2, 3):
        mean_square = sum(v * v for v in x[row]) / 5
        expected[row] = weight * x[row] / math.sqrt(mean_square + 1e-3)
    got = rms_norm(jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32), 1e-3)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_swiglu_against_plain_loops() -> None:
    rng = np.random.default_rng(6)
    x, w_gate, w_up = (rng.normal(size=s) for s in ((3, 2), (2, 7), (2, 7)))
    w_down = rng.normal(size=(7, 2))
    expected = np.zeros((3, 2))
    for i, f, d in np.ndindex(3, 7, 2):
        gate, up = (sum(x[i, b] * w[b, f] for b in range(2)) for w in (w_gate, w_up))
        expected[i, d] += gate / (1 + math.exp(-gate)) * up * w_down[f, d]
    got = swiglu(*(jnp.asarray(a, jnp.float32) for a in (x, w_gate, w_up, w_down)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_rms_norm_takes_its_mean_in_float32() -> None:
    x = jnp.full((1, 512), 300.0, jnp.float16)  # the squares overflow float16
    got = rms_norm(x, jnp.ones(512, jnp.float16))
    assert got.dtype == jnp.float16
    np.testing.assert_allclose(got.astype(jnp.float32), 1.0, atol=1e-3)


@pytest.mark.parametrize("jitted", [False, True])
def test_large_entries_are_normalized_too(jitted: bool) -> None:
    """The mean of the first was rounded, and the squares of the others overflowed."""
    one, zero = jnp.ones(3), jnp.zeros(3)
    norm = jax.jit(layer_norm) if jitted else layer_norm
    root = 1.5**0.5
    for x in ([1e8, 1e8 + 8, 1e8 + 16], [1e30, 2e30, 3e30], [1e38, 2e38, 3e38]):
        np.testing.assert_allclose(norm(jnp.array(x), one, zero), [-root, 0, root], atol=1e-6)
    large = jnp.array([3e30, -3e30, 3e30])
    np.testing.assert_allclose(rms_norm(large, one), [1.0, -1.0, 1.0], rtol=1e-6)
    slope = jax.grad(lambda x: rms_norm(x, one)[0])(jnp.array([1e20, -1e20, 2e20]))
    want = np.array([5.0, 1.0, -2.0]) / 6 / 2**0.5 / 1e20  # of x / rms(x), by hand
    np.testing.assert_allclose(slope, want, rtol=1e-5)
