"""Attention in float64 against a loop and differences, its samples; the work that is counted."""

import jax.numpy as jnp
import numpy as np
import pytest

from harness import oracle
from tests import oracles


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
def test_oracle_against_loops(is_causal):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((1, 2, 7, 3)), rng.standard_normal((1, 2, 7, 3))
    value, bar = rng.standard_normal((1, 2, 7, 5)), rng.standard_normal((1, 2, 7, 5))
    found = oracle.attention_float64(query, key, value, is_causal=is_causal, cotangent=bar, block=3)
    visible = np.tri(7, dtype=bool) if is_causal else True
    output = oracles.attention(query, key, value, visible)[0]
    gradients = oracles.attention_gradients(query, key, value, visible, d_output=bar)
    oracles.close(tuple(found), (output, *gradients[:3]))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_a_sample_agrees_with_everything(is_causal, kv_heads):
    rng = np.random.default_rng(0)
    query, bar = (rng.standard_normal((2, 6, 11, 5)) for _ in range(2))
    key, value = (rng.standard_normal((2, kv_heads, 11, 5)) for _ in range(2))
    given = {"is_causal": is_causal, "cotangent": bar}
    whole = oracle.attention_float64(query, key, value, **given, block=4)
    words, pieces = oracle.attention_pieces(
        query, key, value, **given, most_pairs=120, sampled_rows=4
    )
    assert words == "4 query rows of every head"
    assert [piece.output for piece in pieces] == [0, 1]
    assert {0, 10} <= set(pieces[0].where[2])
    for piece in pieces:
        found = whole[piece.output][piece.where]
        assert found.shape == piece.values.shape
        np.testing.assert_allclose(found, piece.values, rtol=1e-12, atol=1e-14)
