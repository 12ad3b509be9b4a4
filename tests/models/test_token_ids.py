"""Tokens that are none: read, they give NaN; where they fill a row up, they do not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import minilm, smollm2, tiny
from mha_book.models.interface import next_token_losses, real_tokens
from tests.models.small import random_like, small_minilm, small_smollm2

SMOLLM2, MINILM = small_smollm2(), small_minilm(num_layers=1)
TINY = tiny.TinyConfig(vocab_size=101, d_model=8, num_layers=1)
TINY_PARAMS = random_like(jax.eval_shape(lambda: tiny.init_tiny(0, TINY)))
SIZE, T = 101, 5
STRANGE = (-1, -SIZE, -100, SIZE, 2**30, -(2**31))
SMALL = jnp.arange(1, T + 1, dtype=jnp.int32)[None]


def with_ids(others):
    """The tokens with others in some places."""
    ids = np.asarray(SMALL).copy()
    for place, strange in others.items():
        ids[0, place] = strange
    return jnp.asarray(ids)


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
        out = np.asarray(model(with_ids({at: strange})))
        assert np.isnan(out[0, at:]).all(), strange
    for dtype in (jnp.int8, jnp.uint8, jnp.uint32):  # narrower than the vocabulary, or unsigned
        np.testing.assert_array_equal(model(SMALL.astype(dtype)), model(SMALL))
    assert np.isnan(model(SMALL.astype(jnp.uint32).at[0, 0].set(2**32 - 1))).all()


def test_labels_that_are_none_give_nan():
    losses = jax.jit(lambda ids: next_token_losses(jnp.zeros((1, T - 1, SIZE)), ids))
    of_models = (
        jax.jit(lambda ids: tiny.loss(TINY_PARAMS, ids, config=TINY)),
        jax.jit(lambda ids: smollm2.loss(SMOLLM2.params, ids, config=SMOLLM2.config)),
    )
    for strange in STRANGE:
        found = np.asarray(losses(with_ids({2: strange})))[0]
        assert np.isnan(found).tolist() == [False, True, False, False]
        last = with_ids({T - 1: strange})  # a label alone: the model does not read it
        assert all(np.isnan(loss(last)) for loss in of_models)


def test_losses_of_half_precision_are_not_rounded_to_it():
    losses = next_token_losses(jnp.zeros((1, 1, 49152), jnp.bfloat16), jnp.array([[0, 5]]))
    np.testing.assert_allclose(losses, np.log(49152), rtol=1e-6)  # its neighbours are 1/16 apart


def test_what_fills_a_row_up_does_not_matter():
    """Neither forward nor backward."""
    lengths = jnp.array([T, 3], jnp.int32)

    def rows(filler):
        return jnp.concatenate([SMALL, with_ids({3: filler, 4: filler})])

    @jax.jit
    def of_decoder(params, rows):
        return jax.value_and_grad(smollm2.loss)(params, rows, lengths, config=SMOLLM2.config)

    @jax.jit
    def of_encoder(params, rows):
        return jax.value_and_grad(lambda p: jnp.sum(minilm.embed(p, rows, lengths) ** 3))(params)

    @jax.jit
    def prefilled(params, rows):
        caches = smollm2.init_caches(2, T, config=SMOLLM2.config)
        return smollm2.prefill(params, rows, lengths, caches, config=SMOLLM2.config)

    for run, model in ((of_decoder, SMOLLM2), (of_encoder, MINILM), (prefilled, SMOLLM2)):
        wanted = run(model.params, rows(0))
        for filler in (7, *STRANGE):
            got = run(model.params, rows(filler))
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
            jax.tree.map(np.testing.assert_array_equal, got, wanted)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_lengths_of_narrow_integers_count_as_far_as_wide_ones(dtype):
    """200 positions are more than int8 has: counted in it, the last ones would be real again."""
    ids = jnp.full((1, 200), 7, jnp.int32)
    found = real_tokens(ids, jnp.array([100], dtype))
    assert found[0].tolist() == [7] * 100 + [0] * 100


def test_places_that_are_none_give_nan():
    """A place before the first would count from the end of the table, one behind it be the last."""
    config = tiny.TinyConfig(vocab_size=11, max_length=8, d_model=8, num_layers=1, num_heads=2)
    params = jax.jit(lambda: tiny.init_tiny(0, config))()
    run = jax.jit(lambda ids, at: tiny.forward(params, ids, config=config, positions=at))
    for places in ([0, 1, -1], [0, 1, 8]):
        logits = run(jnp.ones((1, 3), jnp.int32), jnp.array(places))
        assert jnp.isnan(logits[0, 2]).all()
