"""Counts, keys, rates and trees that do not fit: the cache, dropout, shared and latent heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import init_multi_head
from mha_book.multihead.cache import append, attend_cached, cache_mask, init_cache

B, N, K, H, D, T = 2, 6, 3, 4, 5, 2
pytestmark = pytest.mark.usefixtures("no_type_checks")

NEW, QUERY = jnp.ones((B, K, T, H)), jnp.ones((B, N, T, H))


def refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def counts(*numbers):
    return jnp.array(numbers, jnp.int32)


@pytest.mark.parametrize("window", [None, 4])
def test_counts_lie_between_none_and_all(window):
    cache = init_cache(B, K, 5, H, window=window)
    full = append(cache, NEW, NEW)
    for wrong in (counts(0, 3), counts(-1, 2)):
        message = rf"counts: expected numbers from 0 to 2, the new tokens; got \[{wrong[0]}, "
        refused(message, lambda wrong=wrong: append(cache, NEW, NEW, wrong))
        refused(message, lambda wrong=wrong: cache_mask(full, T, wrong))
        refused(message, lambda wrong=wrong: attend_cached(QUERY, full, wrong))
        taken = jax.jit(append)(cache, NEW, NEW, wrong)
        assert taken.lengths.tolist() == np.clip(wrong, 0, 2).tolist()


@pytest.mark.parametrize("window", [None, 4])
def test_tokens_are_appended_before_they_attend(window):
    cache = init_cache(B, K, 5, H, window=window)
    half = append(cache, NEW, NEW, counts(1, 2))
    for early in (cache, half):
        message = r"cache: expected tokens appended before they attend, \[2, 2\] or more; got"
        refused(message, lambda early=early: attend_cached(QUERY, early))
    output = jax.jit(attend_cached)(QUERY, half)
    assert np.isnan(output[0]).all()
    np.testing.assert_allclose(output[1], 1.0, rtol=1e-6)


@pytest.mark.parametrize("one, other", [(2**32 + 7, 7), (-1, 2**32 - 1), (np.int64(2**40), 0)])
def test_two_seeds_are_two_keys(one, other):
    draw = lambda seed: init_multi_head(seed, 2, 1).w_q  # noqa: E731
    assert not np.array_equal(draw(one), draw(other))
    under_jit = jax.jit(lambda x: x + draw(one))(0.0)
    np.testing.assert_allclose(under_jit, draw(one), rtol=1e-6)
