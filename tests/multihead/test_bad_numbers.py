"""Counts, keys, rates and trees that do not fit: the cache, dropout, shared and latent heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, fuse, init_multi_head
from mha_book.multihead.cache import (
    append,
    attend_cached,
    cache_mask,
    cached_multi_head_attention,
    init_cache,
)
from mha_book.multihead.dropout import Dropout, draw_factors, dropout, dropout_factors
from mha_book.multihead.grouped import (
    fit_groups,
    kv_head_index,
    mean_pool_groups,
    reinitialize_groups,
    repeat_kv_heads,
    select_from_groups,
)
from mha_book.multihead.latent import (
    absorbed_attention,
    compress,
    expanded_attention,
    init_latent,
)

B, N, K, H, D, T = 2, 6, 3, 4, 5, 2
pytestmark = [pytest.mark.unoptimized, pytest.mark.usefixtures("no_type_checks")]

NEW = jnp.ones((B, K, T, H))
QUERY = jnp.ones((B, N, T, H))


def refused(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def counts(*numbers):
    return jnp.array(numbers, jnp.int32)


@pytest.mark.parametrize("window", [None, 3])
def test_counts_lie_between_none_and_all(window):
    cache = init_cache(B, K, 5, H, window=window)
    full = append(cache, NEW, NEW)
    for wrong in (counts(0, 3), counts(-1, 2)):
        message = (
            rf"counts: expected numbers from 0 to 2, the new tokens; got \[{wrong[0]}, {wrong[1]}"
        )
        refused(message, lambda wrong=wrong: append(cache, NEW, NEW, wrong))
        refused(message, lambda wrong=wrong: cache_mask(full, T, wrong))
        refused(message, lambda wrong=wrong: attend_cached(QUERY, full, wrong))
        taken = jax.jit(append)(cache, NEW, NEW, wrong)
        assert taken.lengths.tolist() == np.clip(wrong, 0, 2).tolist()
    refused("counts: expected an array of integers", lambda: append(cache, NEW, NEW, [1, 2]))
    refused("counts: expected one number for each", lambda: cache_mask(full, T, counts(1)))


@pytest.mark.parametrize("window", [None, 3])
def test_tokens_are_appended_before_they_attend(window):
    cache = init_cache(B, K, 5, H, window=window)
    message = r"cache: expected tokens appended before they attend, \[2, 2\] or more; got"
    refused(message, lambda: attend_cached(QUERY, cache))
    half = append(cache, NEW, NEW, counts(1, 2))
    refused(message, lambda: attend_cached(QUERY, half))
    output = jax.jit(attend_cached)(QUERY, half)
    assert np.isnan(output[0]).all()
    np.testing.assert_allclose(output[1], 1.0, rtol=1e-6)


def test_the_batch_of_the_query_is_that_of_the_cache():
    cache = append(init_cache(B, K, 5, H), NEW, NEW)
    for batch in (1, 3):
        query = jnp.ones((batch, N, T, H))
        refused(
            "query: expected axis 0 .* 2, as in the cache", lambda q=query: attend_cached(q, cache)
        )
    refused("query: expected an array", lambda: attend_cached([1.0], cache))
    params = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H)
    empty = init_cache(B, K, 5, H)
    refused("key", lambda: cached_multi_head_attention(params, jnp.ones((3, T, D)), empty))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_a_valid_step_makes_no_nan(jit, window):
    attend = jax.jit(attend_cached) if jit else attend_cached
    with jax.debug_nans(True):
        cache = append(init_cache(B, K, 5, H, window=window), NEW, NEW, counts(1, 2))
        assert np.isfinite(attend(QUERY, cache, counts(1, 2))).all()
        slope = jax.grad(lambda query: attend(query, cache, counts(1, 2)).sum())(QUERY)
        assert np.isfinite(slope).all()


def test_sizes_of_a_cache_may_be_numpy_s():
    cache = init_cache(np.int64(B), np.int32(K), np.int64(5), np.int8(H), window=np.int64(3))
    assert (cache.keys.shape, cache.window) == ((B, K, H, 5), 3)
    assert type(cache.window) is int
    for wrong in (2.0, True, "2", None):
        refused("batch: expected a positive integer", lambda w=wrong: init_cache(w, K, 5, H))


def test_a_number_is_no_dropout():
    draw = lambda rates: draw_factors(rates, jax.random.key(0), (N, T, T), H, D)  # noqa: E731
    for wrong in (0.1, 0, {"weights": 0.1}):
        refused(
            r"dropout: expected a rate for one of its places: Dropout\(weights=0.1\); got",
            lambda wrong=wrong: draw(wrong),
        )
    for wrong in (1.0, -0.1, float("nan"), "0.1", None, True):
        refused("dropout.heads: expected a probab", lambda wrong=wrong: Dropout(heads=wrong))
        refused("rate: expected a prob", lambda wrong=wrong: dropout(jnp.ones(3), wrong, 0))
    for rate in (np.float32(0.5), np.float64(0.5)):
        got = dropout(jnp.ones(9), rate, 0)
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, dropout(jnp.ones(9), 0.5, jax.random.key(0)))


def test_a_seed_or_a_raw_key_stands_for_a_key():
    rates = Dropout(heads=0.5)
    params = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H)
    sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
    functions = (
        lambda key: dropout_factors(key, 0.5, (7,)),
        lambda key: dropout(jnp.ones(7), 0.5, key),
        lambda key: draw_factors(rates, key, (N, T, T), H, D).heads,
        lambda key: reinitialize_groups(key, params, 1).w_k,
        lambda key: init_latent(key, D, N, **sizes).w_q,
    )
    wrongs = ("42", 4.2, True, jnp.ones(2), jnp.arange(3), jax.random.split(jax.random.key(0), 2))
    for function in functions:
        wanted = function(jax.random.key(42))
        for key in (42, np.int64(42), jax.random.PRNGKey(42), np.asarray(jax.random.PRNGKey(42))):
            np.testing.assert_array_equal(function(key), wanted)
        np.testing.assert_allclose(jax.jit(function)(42), wanted, rtol=1e-6)
        for wrong in wrongs:
            refused(
                r"rng_key: expected one PRNG key such as jax.random.key\(42\), or an integer seed",
                lambda wrong=wrong, function=function: function(wrong),
            )


def test_a_layer_without_heads_has_none_to_repeat():
    full = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H, use_bias=True)
    none = MultiHeadParams(
        full.w_q[:, :0], full.w_k[:, :0], full.w_v[:, :0], full.w_o[:0],
        full.b_q[:0], full.b_k[:0], full.b_v[:0], full.b_o,
    )  # fmt: skip
    assert repeat_kv_heads(none).w_k.shape == (D, 0, H)
    assert kv_head_index(0, 0).shape == (0,)
    assert kv_head_index(np.int64(6), np.int32(3)).tolist() == [0, 0, 1, 1, 2, 2]
    for convert in (mean_pool_groups, select_from_groups, fit_groups):
        refused("num_kv_heads: expected", lambda convert=convert: convert(none, 1))
    for wrong in (0, -1, 2.0, True, "1"):
        refused("num_kv_heads: expected a pos", lambda wrong=wrong: mean_pool_groups(full, wrong))
        refused("num_kv_heads: expected a pos", lambda wrong=wrong: kv_head_index(6, wrong))
    refused("member: expected a number from 0 to 2", lambda: select_from_groups(full, 1, 1.0))


def test_the_tree_of_another_layer_is_refused():
    full = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H)
    latent = init_latent(0, 8, 5, latent_dim=6, head_dim=4, rotary_dim=2, value_dim=3)
    for convert in (mean_pool_groups, select_from_groups, fit_groups):
        for wrong in ({"w_q": full.w_q}, latent, None, fuse(full)):
            refused(
                "params: expected MultiHeadParams",
                lambda convert=convert, wrong=wrong: convert(wrong, 1),
            )
    x, angles = jnp.ones((7, 8)), jnp.zeros((7, 1))
    kept = compress(latent, x, angles)
    for attention in (expanded_attention, absorbed_attention):
        assert attention(latent, x, kept, angles).shape == (7, 8)
        for wrong in ({}, full, None):
            refused(
                "params: expected LatentParams; got",
                lambda a=attention, wrong=wrong: a(wrong, x, kept, angles),
            )
        for name, weight, message in (
            ("w_uv", latent.w_uv[:5], r"w_uv: expected axes \(R, N, C\) with R = 6; got"),
            ("w_o", latent.w_o[:4], r"w_o: expected axes \(N, C, D\) with N = 5"),
            ("w_uk", latent.w_uk[0], r"w_uk: expected axes \(R, N, H\), rank 3"),
            ("w_q", latent.w_q[..., :5], "w_q: expected axis 2 .* to be 6; got 5"),
            ("w_kr", latent.w_kr.astype(jnp.float16), "w_kr: expected the dtype of w_c"),
            ("norm_c", jnp.ones(5), r"norm_c: expected axes \(R\) with R = 6"),
            ("norm_qc", jnp.ones(8), "norm_qc: expected None, without w_qc"),
            ("w_o", None, "w_o: expected an array"),
        ):
            broken = latent._replace(**{name: weight})
            refused(message, lambda a=attention, b=broken: a(b, x, kept, angles))
        for broken, message in (
            (kept.content, "latent: expected what compress gave"),
            (kept._replace(content=kept.content[:, :5]), "latent.content: expected axis -1"),
            (kept._replace(rotated_key=kept.rotated_key[:5]), "latent.rotated_key: .* axis -2"),
            (kept._replace(content=kept.content[None]), "latent.content: .* leading axes of x"),
        ):
            refused(message, lambda a=attention, b=broken: a(latent, x, b, angles))
    refused(
        "rotary_dim: expected an even number; got 3",
        lambda: init_latent(0, 8, 5, latent_dim=6, head_dim=4, rotary_dim=3, value_dim=3),
    )
    refused(
        "latent_dim: expected a positive integer",
        lambda: init_latent(0, 8, 5, latent_dim=6.0, head_dim=4, rotary_dim=2, value_dim=3),
    )
