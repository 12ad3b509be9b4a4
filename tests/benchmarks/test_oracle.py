"""Attention in float64 against a loop, its samples, the check of an output; work and rates."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from harness import oracle, rates


def test_a_wrong_output_is_refused():
    expected = [np.array([1.0, -4.0]), np.array([[2.0]])]
    good = [np.array([1.0, -4.0], np.float32), jnp.array([[2.00001]])]
    assert oracle.verify("x", good, expected, 1e-5) == pytest.approx(5e-6, rel=0.1)
    for bad in (
        [good[0], np.array([[2.1]])],
        [good[0], np.array([[np.nan]])],
        [good[0], np.array([2.0])],
        [good[0]],
    ):
        with pytest.raises(oracle.WrongOutput, match="x: expected"):
            oracle.verify("x", bad, expected, 1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("query_length,key_length", [(7, 7), (1, 1), (5, 11), (11, 5)])
def test_visible_pairs_against_brute_force(query_length, key_length, is_causal):
    brute = sum(not is_causal or j <= i for i in range(query_length) for j in range(key_length))
    assert rates.visible_pairs(query_length, key_length, is_causal=is_causal) == brute
    assert rates.visible_pairs(13, 13, is_causal=True) == 13 * 14 // 2


def test_flops_against_the_matmuls():
    """Forward QKᵀ and PV; backward dV, dP, dQ, dK: 2 FLOPs a pair and unit of width each."""
    count = rates.attention_flops
    pairs, heads, key_width, value_width = 35, 3, 2, 7
    forward = heads * pairs * (2 * key_width + 2 * value_width)
    backward = heads * pairs * (2 * value_width + 2 * value_width + 2 * key_width + 2 * key_width)
    assert count(pairs, heads, key_width, value_width, backward=False) == forward
    assert count(pairs, heads, key_width, value_width, backward=True) == forward + backward


def test_rates_are_positive():
    found = rates.measure_rates("bfloat16", matmul_size=16, copy_mib=1, rounds=2)
    assert all(value > 0 for value in found.values())


@pytest.mark.parametrize("is_causal", [False, True])
def test_oracle_against_a_loop_and_finite_differences(is_causal):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((1, 2, 7, 3)), rng.standard_normal((1, 2, 7, 3))
    value, bar = rng.standard_normal((1, 2, 7, 5)), rng.standard_normal((1, 2, 7, 5))
    found = oracle.attention_float64(query, key, value, is_causal=is_causal, cotangent=bar, block=3)
    loop = np.zeros_like(bar)
    for h, i in itertools.product(range(2), range(7)):
        seen = i + 1 if is_causal else 7
        weights = np.exp([query[0, h, i] @ key[0, h, j] / np.sqrt(3) for j in range(seen)])
        loop[0, h, i] = weights / weights.sum() @ value[0, h, :seen]
    np.testing.assert_allclose(found[0], loop, rtol=1e-12, atol=1e-14)
    operands, step = (query, key, value), 1e-5
    for index, gradient in enumerate(found[1:]):
        direction = rng.standard_normal(operands[index].shape)
        sides = []
        for sign in (1, -1):
            moved = list(operands)
            moved[index] = operands[index] + sign * step * direction
            sides.append((oracle.attention_float64(*moved, is_causal=is_causal)[0] * bar).sum())
        slope = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-8)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_a_sample_agrees_with_everything(is_causal, kv_heads):
    rng = np.random.default_rng(0)
    query, bar = (rng.standard_normal((2, 6, 11, 5)) for _ in range(2))
    key, value = (rng.standard_normal((2, kv_heads, 11, 5)) for _ in range(2))
    given = {"is_causal": is_causal, "cotangent": bar}
    whole = oracle.attention_float64(query, key, value, **given, block=4)
    words, pieces = oracle.attention_pieces(
        query, key, value, **given, most_pairs=6 // kv_heads * 11**2, sampled_rows=4
    )
    assert words == "4 query rows of every head, all of one key/value head"
    assert [piece.output for piece in pieces] == [0, 1, 0, 1, 2, 3]
    assert {0, 10} <= set(pieces[0].where[2])
    for piece in pieces:
        found = whole[piece.output][piece.where]
        assert found.shape == piece.values.shape
        np.testing.assert_allclose(found, piece.values, rtol=1e-12, atol=1e-14)
    words, pieces = oracle.attention_pieces(
        query, key, value, **given, most_pairs=120, sampled_rows=4
    )
    assert words == "4 query rows of every head"
    assert [piece.output for piece in pieces] == [0, 1]


def test_shared_heads_are_repeated_heads():
    """The gradient of a shared head is the sum over the query heads that read it."""
    rng = np.random.default_rng(0)
    query, bar = (rng.standard_normal((1, 6, 7, 5)) for _ in range(2))
    key, value = (rng.standard_normal((1, 2, 7, 5)) for _ in range(2))
    shared = oracle.attention_float64(query, key, value, is_causal=True, cotangent=bar)
    repeated = (np.repeat(x, 3, axis=1) for x in (key, value))
    found = oracle.attention_float64(query, *repeated, is_causal=True, cotangent=bar)
    sums = [x.reshape(1, 2, 3, 7, 5).sum(2) for x in found[2:]]
    for ours, theirs in zip(shared, (*found[:2], *sums), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
