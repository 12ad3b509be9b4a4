"""Rotary positions: a hand-computed turn, plain loops, the relative property, bad input."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import init_multi_head, multi_head_attention, multi_head_attention_with_intermediates
from mha_book.rope import rotary_angles, rotate

T, H = 5, 6


def test_a_pair_of_features_turns_by_its_position():
    x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    turned = rotate(x, rotary_angles(jnp.arange(3), 2))
    expected = [[1, 0], [math.cos(1), math.sin(1)], [-2 * math.sin(2), 2 * math.cos(2)]]
    np.testing.assert_allclose(turned, expected, rtol=1e-6)


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


def test_scores_depend_on_the_distance_alone():
    q, k = np.random.default_rng(1).normal(size=(2, 1, H))

    def score(query_position, key_position):
        turned = (
            rotate(jnp.asarray(x, jnp.float32), rotary_angles(jnp.array([p]), H))
            for x, p in ((q, query_position), (k, key_position))
        )
        return float(jnp.vdot(*turned))

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(4, 9), abs=1e-2)


def test_rotation_keeps_length_and_dtype():
    x = jax.random.normal(jax.random.key(0), (3, T, H))
    angles = rotary_angles(jnp.arange(T), H)
    lengths = (jnp.linalg.norm(y, axis=-1) for y in (x, rotate(x, angles)))
    np.testing.assert_allclose(*lengths, rtol=1e-5)
    assert rotate(x.astype(jnp.bfloat16), angles).dtype == jnp.bfloat16


def test_angles_may_differ_by_batch_entry():
    x = jax.random.normal(jax.random.key(0), (2, 3, T, H))
    positions = jnp.stack((jnp.arange(T), jnp.arange(T) + 11))
    angles = rotary_angles(positions, H)
    turned = rotate(x, angles[:, None])
    for entry in range(2):
        np.testing.assert_allclose(turned[entry], rotate(x[entry], angles[entry]), rtol=1e-6)


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


@pytest.mark.parametrize("theta", [100.0, np.float32(100), np.float64(100), 100, jnp.float32(100)])
def test_angles_are_float32_whatever_they_are_made_of(no_type_checks, theta):
    wanted = rotary_angles(jnp.arange(T), H, 100.0)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            for positions in (jnp.arange(T), np.arange(T), jnp.arange(T, dtype=jnp.int8)):
                angles = rotary_angles(positions, np.int64(H), theta)
                assert angles.dtype == jnp.float32
                np.testing.assert_array_equal(angles, wanted)
            x = jnp.ones((T, H), jnp.float32)
            assert rotate(x, angles).dtype == jnp.float32
            wide = angles.astype(jnp.float64 if x64 else jnp.float32)
            assert rotate(x, wide).dtype == jnp.float32


def test_angles_have_the_rank_of_x_or_none_of_its_leading_axes():
    x = jax.random.normal(jax.random.key(0), (2, 2, T, H))
    angles = rotary_angles(jnp.arange(2 * T).reshape(2, T), H)
    turned = rotate(x, angles[:, None])
    for row in range(2):
        np.testing.assert_array_equal(turned[row], rotate(x[row], angles[row]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotary_angles(jnp.ones(3), 4), "positions: expected an array of integers"),
        (lambda: rotary_angles(3, 4), "positions: expected an array of integers; got int"),
        (lambda: rotary_angles(jnp.arange(3), 5), "head_dim: expected a positive even integer"),
        (lambda: rotary_angles(jnp.arange(3), True), "head_dim: expected a positive even integer"),
        (lambda: rotary_angles(jnp.arange(3), 4, "x"), "theta: expected a positive number; got"),
        (
            lambda: rotate(jnp.ones((3, 4)), jnp.ones((3, 2), int)),
            "angles: expected a floating-point dtype; got int32",
        ),
        (  # as many sequences as heads: heads were turned by the angles of sequences
            lambda: rotate(jnp.ones((2, 2, 3, 4)), jnp.ones((2, 3, 2))),
            r"angles: expected axes .* \(2, 2\) as in x, .* write angles\[:, None\] if",
        ),
        (
            lambda: rotate(jnp.ones((2, 5, 3, 4)), jnp.ones((5, 1, 3, 2))),
            r"angles: expected axes .* leading axes \(2, 5\) as in x, each equal or 1; got",
        ),
        (lambda: rotate(jnp.ones((3, 4)), jnp.ones((1, 3, 2))), "angles: expected axes"),
        (lambda: rotary_angles(jnp.arange(3), 4, 0.0), "theta: expected a positive number"),
        (lambda: rotate(jnp.ones((3, 5)), jnp.ones((3, 2))), "x: expected an even last axis"),
        (lambda: rotate(jnp.ones(4), jnp.ones((3, 2))), "x: expected axes"),
        (lambda: rotate(jnp.ones((3, 4), int), jnp.ones((3, 2))), "x: expected a floating-point"),
        (lambda: rotate(jnp.ones((3, 4)), jnp.ones((3, 3))), "angles: expected axis -1 .* 2"),
        (lambda: rotate(jnp.ones((3, 4)), jnp.ones((2, 2))), "angles: expected axis -2 .* 3"),
        (
            lambda: multi_head_attention(
                init_multi_head(jax.random.key(0), 4, 2),
                jnp.ones((3, 4)),
                jnp.ones((3, 4)),
                angles=jnp.ones((3, 1)),
            ),
            "angles: expected self-attention",
        ),
    ],
)
def test_bad_input(no_type_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
