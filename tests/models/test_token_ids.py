"""Tokens that are none: read, they give NaN; where they fill a row up, they do not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import minilm, smollm2, tiny
from mha_book.models.interface import next_token_losses, real_tokens
from tests.models.small import small_minilm, small_smollm2

SMOLLM2, MINILM = small_smollm2(), small_minilm(num_layers=1)
TINY = tiny.TinyConfig(vocab_size=101, d_model=8, num_layers=1)
TINY_PARAMS = tiny.init_tiny(0, TINY)
SIZE, T = 101, 5
STRANGE = (-1, -SIZE, -100, SIZE, 2**30, -(2**31))
SMALL = jnp.arange(1, T + 1, dtype=jnp.int32)[None]


def of_smollm2(ids):
    return smollm2.forward(SMOLLM2.params, ids, config=SMOLLM2.config)


def of_minilm(ids):
    return minilm.encode(MINILM.params, ids, jnp.array([T], jnp.int32))[-1]


def of_tiny(ids):
    return tiny.forward(TINY_PARAMS, ids, config=TINY)


@pytest.mark.parametrize("model", [of_smollm2, of_minilm, of_tiny])
def test_a_token_that_is_none_gives_nan(no_type_checks, model):
    model = jax.jit(model)
    assert np.isfinite(model(SMALL)).all()
    for strange in STRANGE:
        at = 3 if model is not of_minilm else 0
        out = model(SMALL.at[0, at].set(strange))
        assert np.isnan(out[0, at:]).all(), strange
    for dtype in (jnp.int8, jnp.uint8, jnp.uint32):  # narrower than the vocabulary, or unsigned
        np.testing.assert_array_equal(model(SMALL.astype(dtype)), model(SMALL))
    assert np.isnan(model(SMALL.astype(jnp.uint32).at[0, 0].set(2**32 - 1))).all()


def test_labels_that_are_none_give_nan():
    logits = jnp.zeros((1, T - 1, SIZE))
    for strange in STRANGE:
        losses = next_token_losses(logits, SMALL.at[0, 2].set(strange))
        assert np.isnan(losses[0]).tolist() == [False, True, False, False]
        last = SMALL.at[0, -1].set(strange)  # a label alone: the model does not read it
        assert np.isnan(tiny.loss(TINY_PARAMS, last, config=TINY))
        assert np.isnan(smollm2.loss(SMOLLM2.params, last, config=SMOLLM2.config))


def test_losses_of_half_precision_are_not_rounded_to_it():
    losses = next_token_losses(jnp.zeros((1, 1, 49152), jnp.bfloat16), jnp.array([[0, 5]]))
    np.testing.assert_allclose(losses, np.log(49152), rtol=1e-6)  # its neighbours are 1/16 apart


@pytest.mark.parametrize("filler", [0, 7, *STRANGE])
def test_what_fills_a_row_up_does_not_matter(filler):
    """Neither forward nor backward."""
    rows = jnp.concatenate([SMALL, SMALL.at[0, 3:].set(filler)])
    lengths = jnp.array([T, 3], jnp.int32)

    def of_decoder(params, rows):
        return smollm2.loss(params, rows, lengths, config=SMOLLM2.config)

    def of_encoder(params, rows):
        return jnp.sum(minilm.embed(params, rows, lengths) ** 3)

    clean = jnp.concatenate([SMALL, SMALL.at[0, 3:].set(0)])
    for loss, params in ((of_decoder, SMOLLM2.params), (of_encoder, MINILM.params)):
        got, wanted = (jax.jit(jax.value_and_grad(loss))(params, x) for x in (rows, clean))
        assert np.isfinite(got[0])
        jax.tree.map(np.testing.assert_array_equal, got, wanted)
    caches = smollm2.init_caches(2, T, config=SMOLLM2.config)
    for got in smollm2.prefill(SMOLLM2.params, rows, lengths, caches, config=SMOLLM2.config):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_lengths_of_narrow_integers_count_as_far_as_wide_ones(dtype):
    """200 positions are more than int8 has: counted in it, the last ones would be real again."""
    ids = jnp.full((1, 200), 7, jnp.int32)
    found = real_tokens(ids, jnp.array([100], dtype))
    assert found[0].tolist() == [7] * 100 + [0] * 100


def test_places_that_are_none_give_nan():
    """A place before the first would count from the end of the table, one behind it be the last."""
    config = tiny.TinyConfig(vocab_size=11, max_length=8, d_model=8, num_layers=1, num_heads=2)
    params = tiny.init_tiny(0, config)
    for places in ([0, 1, -1], [0, 1, 8]):
        logits = tiny.forward(
            params, jnp.ones((1, 3), jnp.int32), config=config, positions=jnp.array(places)
        )
        assert jnp.isnan(logits[0, 2]).all()
