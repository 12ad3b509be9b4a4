"""Readings of a model that experiments have of their own, against the model and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import heads_in_use, positions, sinks
from mha_book.models import smollm2
from tests.models.small import small_smollm2

IDS = jnp.arange(3, 20, dtype=jnp.int32) * 5 % 101

# Heads in use.


def test_a_reading_is_that_of_the_model():
    params, config, *_ = small_smollm2()
    shape, sizes = (config.num_layers, config.num_heads), heads_in_use.Sizes(batches=0)
    bench = heads_in_use.Bench(small_smollm2(), sizes)
    ids = jnp.array([[0, 5, 6, 7, 5, 6, 7], [0, 3, 4, 8, 3, 4, 8]], jnp.int32)
    for heads in ([], [[0, 1]]):
        gates = jnp.ones(shape).at[0, 1].set(0 if heads else 1)
        want = smollm2.token_losses(params, ids, config=config, gates=gates)
        np.testing.assert_allclose(bench.read(ids, heads).losses, want, atol=1e-5)


# Positions.


def test_losses_by_pieces_are_those_of_the_model():
    params, config, *_ = small_smollm2()
    ids = jnp.arange(12, dtype=jnp.int32) % config.vocab_size
    angles = positions.scheme_angles("plain", jnp.arange(12), config, 4.0)
    got = positions.long_losses(params, ids, angles, config=config, chunk=3)
    wanted = smollm2.token_losses(params, ids[None], config=config)[0]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_frozen_scores_by_hand():
    """Two keys besides the first, one pair of features, a quarter turn a position."""
    query = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    key = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    angles = jnp.arange(3.0)[:, None] * jnp.pi / 2
    found = positions.frozen(query, key, angles)
    scale = np.sqrt(2)

    def weights(*scores):
        return np.exp(scores) / np.exp(scores).sum()

    # Query 2, (0, 1), without rotation: keys score 0, 0 and 2.
    np.testing.assert_allclose(found["rotation frozen"][2], weights(0, 0, 2 / scale), rtol=1e-5)
    # Mean query (1/2, 1/2), mean key (1, 1): 1 at the same place, 0 a quarter turn apart.
    np.testing.assert_allclose(found["content frozen"][2], weights(0, 0, 1 / scale), rtol=1e-5)
    # Query 2 turned by half a turn, (0, -1); key 1 turned to (0, 2), key 2 to (0, -2).
    np.testing.assert_allclose(found["whole"][2], weights(0, -2 / scale, 2 / scale), rtol=1e-5)


# Sinks.


@pytest.fixture(scope="module")
def bench():
    return sinks.Bench(small_smollm2(), sinks.QUICK)


def losses(bench, **changes):
    return bench.read(IDS[None], **changes).losses[0]


def test_without_the_first_key_the_text_begins_at_the_second_token(bench):
    """Rotary positions tell distances alone, so that it is the text without its first token."""
    params, config, _ = bench.model
    zeros = np.zeros(bench.heads)
    found = losses(bench, own=zeros, logit=zeros + sinks.HIDDEN, value=zeros)
    told = smollm2.token_losses(params, IDS[None, 1:], config=config)[0]
    np.testing.assert_allclose(found[1:], told, atol=1e-4)
