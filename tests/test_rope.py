"""Rotary positions: a hand-computed turn, plain loops, the relative property, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import init_multi_head, multi_head_attention, multi_head_attention_with_intermediates
from mha_book.rope import rotary_angles, rotate

T, H = 5, 6


def test_rotation_equals_plain_loops():
    rng = np.random.default_rng(0)
    x, positions, theta = rng.normal(size=(2, 3, T, H)), [0, 7, 2, 31, 1], 50.0
    expected = np.empty_like(x)
    for t, position in enumerate(positions):
        for a in range(H // 2):
            angle = position * theta ** (-2 * a / H)
            even, odd = x[..., t, 2 * a], x[..., t, 2 * a + 1]
            expected[..., t, 2 * a] = even * math.cos(angle) - odd * math.sin(angle)
            expected[..., t, 2 * a + 1] = even * math.sin(angle) + odd * math.cos(angle)
    angles = rotary_angles(jnp.asarray(positions), H, theta)
    np.testing.assert_allclose(rotate(jnp.asarray(x, jnp.float32), angles), expected, atol=1e-5)


def test_the_layer_rotates_queries_and_keys_after_projection():
    params = init_multi_head(jax.random.key(0), 12, 2)
    x = jax.random.normal(jax.random.key(1), (T, 12))
    angles = rotary_angles(jnp.arange(T), 6)
    plain = multi_head_attention_with_intermediates(params, x)[1]
    turned = multi_head_attention_with_intermediates(params, x, angles=angles)[1]
    np.testing.assert_allclose(turned.query, rotate(plain.query, angles), rtol=1e-6)
    np.testing.assert_allclose(turned.key, rotate(plain.key, angles), rtol=1e-6)
    np.testing.assert_allclose(turned.value, plain.value)
    # Turning everything by the same offset changes nothing: positions are relative.
    later = rotary_angles(jnp.arange(T) + 40, 6)
    outputs = (multi_head_attention(params, x, angles=a) for a in (angles, later))
    np.testing.assert_allclose(*outputs, atol=1e-5)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("theta", [10_000.0, 1e5, 0.5])
def test_far_positions_are_turned_right(jitted: bool, theta: float) -> None:
    """They were off by 0.02 radians at a million, and 2**24 was 2**24 + 1."""
    run = jax.jit(rotary_angles, static_argnums=(1, 2)) if jitted else rotary_angles
    positions = [7, 1023, 10**6, -(10**6), 2**24, 2**24 + 1, 2**31 - 1, -(2**31)]
    angles = np.asarray(run(jnp.array(positions, jnp.int32), 10, theta), np.float64)
    exact = np.array(positions, np.longdouble)[:, None] * theta ** (-np.arange(0, 10, 2) / 10)
    np.testing.assert_allclose(np.cos(angles), np.cos(exact), atol=1e-4)
    np.testing.assert_allclose(np.sin(angles), np.sin(exact), atol=1e-4)
    with jax.enable_x64(True):
        far = np.array([2**40 + 5, -(2**40) - 5])
        angles = np.asarray(rotary_angles(jnp.asarray(far), 2, theta), np.float64)
        np.testing.assert_allclose(np.sin(angles[:, 0]), np.sin(far.astype(float)), atol=1e-3)


def test_a_factor_interpolates_positions(no_type_checks):
    for factor in (4.0, jnp.float32(4.0)):
        angles = rotary_angles(jnp.array([8, 4 * 10**6]), H, factor=factor)
        wanted = rotary_angles(jnp.array([2, 10**6]), H)
        np.testing.assert_allclose(angles, wanted, atol=1e-4)


def test_a_traced_base_has_a_gradient(no_type_checks):
    def angle(theta):
        return rotary_angles(jnp.array([5]), 4, theta)[0, 1]  # 5 / sqrt(theta)

    assert jax.jit(jax.grad(angle))(100.0) == pytest.approx(-0.5 * 5 * 100.0**-1.5)
