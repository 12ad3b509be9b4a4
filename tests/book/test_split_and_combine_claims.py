"""The evidence for the claims of the chapter on splitting and combining heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.heads import combine_heads, split_heads
from tests.book.verdicts import decides

SIZES = [(5, 3, 2), (2, 7, 3), (3, 1, 5), (1, 5, 2), (2, 2, 1)]  # positions, heads, width
UNIT = 2.0**-24  # half the spacing of float32 numbers just above 1


def small_projections(x, w_q):
    """One product for each head: ``(T, D)`` and ``(D, N, H)`` to ``(N, T, H)``."""
    return np.stack([np.asarray(jnp.asarray(x) @ jnp.asarray(w)) for w in w_q.swapaxes(0, 1)])


def one_projection(x, w_q):
    """One product for all heads, then the split."""
    whole = jnp.asarray(x) @ jnp.asarray(w_q.reshape(w_q.shape[0], -1))
    return np.asarray(split_heads(whole, w_q.shape[1]))


def same_order(x, w):
    """``x @ w`` with the terms added one after the other, from the first feature to the last."""
    total = np.zeros((x.shape[0], w.shape[1]), x.dtype)
    for b in range(x.shape[1]):
        total = total + x[:, b, None] * w[b]
    return total


@pytest.fixture(scope="module")
def real_layers(needs_models):
    """``(input, w_q)`` of the six attention layers of MiniLM on one sentence."""
    from mha_book.models.minilm import encode_with_intermediates, load_minilm, tokenize

    minilm = load_minilm()
    token_ids, lengths = tokenize(minilm, ["The harbour froze early, so no ship could leave."])
    with jax.numpy_rank_promotion("allow"):
        _, records = encode_with_intermediates(minilm.params, token_ids, lengths)
    return [
        (np.asarray(record.inputs[0]), np.asarray(layer.attention.w_q))
        for record, layer in zip(records, minilm.params.layers, strict=True)
    ]


@pytest.mark.needs_models
def test_one_projection_is_the_small_ones(real_layers):
    """Exactly where the sums are exact or made in one order, elsewhere up to rounding."""
    assert len(real_layers) == 6
    for x, w_q in real_layers:
        features, num_heads, width = w_q.shape
        one, small = one_projection(x, w_q), small_projections(x, w_q)
        # Each sum of D products is off by at most gamma times the sum of their sizes.
        gamma = features * UNIT / (1 - features * UNIT)
        sizes = one_projection(np.abs(x).astype(np.float64), np.abs(w_q).astype(np.float64))
        assert (np.abs(one - small) <= 2 * gamma * sizes * (1 + 1e-4)).all()
        assert np.abs(one - small).max() <= 1e-5 * np.abs(one).max()
        # Multiples of 1/8 are exact in every order, and so are the results.
        coarse_x, coarse_w = np.rint(8 * x) / 8, np.rint(8 * w_q) / 8
        assert coarse_w.any()
        np.testing.assert_array_equal(
            one_projection(coarse_x, coarse_w), small_projections(coarse_x, coarse_w)
        )
        # So are the real weights, if every sum is made in one order.
        whole = same_order(x, w_q.reshape(features, -1)).reshape(-1, num_heads, width)
        blocks = np.stack([same_order(x, w_q[:, h]) for h in range(num_heads)], axis=1)
        np.testing.assert_array_equal(whole, blocks)
    decides("C16", "confirmed", np.array_equal(whole, blocks))


def test_splitting_needs_a_divisor():
    """The reshape exists for the divisors of the width and for no other number of heads."""
    for length in (1, 3):
        for features in (1, 2, 6, 7, 12):
            x = jnp.zeros((length, features))
            for num_heads in range(1, 15):
                if features % num_heads == 0:
                    got = split_heads(x, num_heads)
                    assert got.shape == (num_heads, length, features // num_heads)
                    continue
                with pytest.raises(ValueError, match="divides the last axis"):
                    split_heads(x, num_heads)
                with pytest.raises(TypeError):
                    jnp.reshape(x, (length, num_heads, features // num_heads))
    decides("C43", "confirmed", got.shape == (features, length, 1))


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_combining_reverses_splitting(batch, dtype):
    """In both orders, entry by entry, for every shape."""
    rng = np.random.default_rng(0)
    for length, num_heads, width in SIZES:
        x = jnp.asarray(rng.integers(-9, 10, (*batch, length, num_heads * width))).astype(dtype)
        np.testing.assert_array_equal(combine_heads(split_heads(x, num_heads)), x)
        heads = jnp.reshape(x, (*batch, num_heads, length, width))
        np.testing.assert_array_equal(split_heads(combine_heads(heads), num_heads), heads)
    decides("C44", "confirmed", np.array_equal(combine_heads(split_heads(x, num_heads)), x))
