"""Counts, keys, rates and trees that do not fit: the cache, dropout, shared and latent heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, fuse, init_multi_head
from mha_book.multihead.cache import append, attend_cached, cache_mask, init_cache
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
    as_latent,
    compress,
    expanded_attention,
    init_latent,
)

B, N, K, H, D, T = 2, 6, 3, 4, 5, 2
pytestmark = [pytest.mark.unoptimized, pytest.mark.usefixtures("no_type_checks")]

NEW, QUERY = jnp.ones((B, K, T, H)), jnp.ones((B, N, T, H))
FULL = init_multi_head(0, D, N, num_kv_heads=K, head_dim=H, use_bias=True)
SIZES = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}


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


@pytest.mark.parametrize("window", [None, 4])
def test_a_valid_step_makes_no_nan(window):
    with jax.debug_nans(True):
        cache = append(init_cache(B, K, 5, H, window=window), NEW, NEW, counts(1, 2))
        slope = jax.grad(lambda query: attend_cached(query, cache, counts(1, 2)).sum())(QUERY)
        assert np.isfinite(slope).all()


def test_sizes_of_a_cache_may_be_numpy_s():
    cache = init_cache(np.int64(B), np.int32(K), np.int64(5), np.int8(H), window=np.int64(3))
    assert (cache.keys.shape, cache.window) == ((B, K, H, 5), 3)
    assert type(cache.window) is int


def test_a_rate_is_a_probability_whose_factor_the_dtype_holds():
    for wrong in (1.0, -0.1, float("nan"), "0.1", None, True):
        refused("dropout.heads: expected a probab", lambda wrong=wrong: Dropout(heads=wrong))
        refused("rate: expected a prob", lambda wrong=wrong: dropout(jnp.ones(3), wrong, 0))
    refused(
        "rate: expected a rate whose factor .* as float16 holds; got 0.99999",
        lambda: dropout_factors(0, 0.99999, (3,), jnp.float16),
    )
    assert not np.isnan(dropout_factors(0, 0.9999, (999,), jnp.float16)).any()
    assert not np.isnan(dropout_factors(0, 0.99999, (999,), jnp.bfloat16)).any()


def test_a_seed_or_a_raw_key_stands_for_a_key():
    functions = (
        lambda key: dropout_factors(key, 0.5, (7,)),
        lambda key: dropout(jnp.ones(7), 0.5, key),
        lambda key: draw_factors(Dropout(heads=0.5), key, (N, T, T), H, D).heads,
        lambda key: reinitialize_groups(key, FULL, 1).w_k,
        lambda key: init_latent(key, D, N, **SIZES).w_q,
    )
    for function in functions:
        wanted = function(jax.random.key(42))
        for key in (42, np.int64(42), jax.random.PRNGKey(42), np.asarray(jax.random.PRNGKey(42))):
            np.testing.assert_array_equal(function(key), wanted)
        for wrong in ("42", 4.2, True, jnp.ones(2), jax.random.split(jax.random.key(0), 2)):
            refused(
                r"rng_key: expected one PRNG key such as jax.random.key\(42\), or an integer seed",
                lambda wrong=wrong, function=function: function(wrong),
            )


@pytest.mark.parametrize("one, other", [(2**32 + 7, 7), (-1, 2**32 - 1), (np.int64(2**40), 0)])
def test_two_seeds_are_two_keys(one, other):
    draw = lambda seed: init_multi_head(seed, 2, 1).w_q  # noqa: E731
    assert not np.array_equal(draw(one), draw(other))
    under_jit = jax.jit(lambda x: x + draw(one))(0.0)
    np.testing.assert_allclose(under_jit, draw(one), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_heads_are_shared_in_half_precision(dtype):
    narrow = jax.tree.map(lambda w: w.astype(dtype), FULL)
    wanted = fit_groups(jax.tree.map(lambda w: w.astype("float32"), narrow), 1)
    for mine, other in zip(fit_groups(narrow, 1), wanted, strict=True):
        assert mine.dtype == dtype
        np.testing.assert_array_equal(mine, other.astype(dtype))
    large = narrow._replace(w_k=narrow.w_k * 1000)  # whose squares float16 does not hold
    assert np.isfinite(reinitialize_groups(0, large, 1).w_k.astype("float32")).all()


def test_a_layer_without_heads_has_none_to_repeat():
    none = MultiHeadParams(
        FULL.w_q[:, :0], FULL.w_k[:, :0], FULL.w_v[:, :0], FULL.w_o[:0],
        FULL.b_q[:0], FULL.b_k[:0], FULL.b_v[:0], FULL.b_o,
    )  # fmt: skip
    assert repeat_kv_heads(none).w_k.shape == (D, 0, H)
    assert kv_head_index(0, 0).shape == (0,)
    for convert in (mean_pool_groups, select_from_groups, fit_groups):
        refused("num_kv_heads: expected", lambda convert=convert: convert(none, 1))
        for wrong in (0, -1, 2, 2.0, True, "1"):
            refused("num_kv_heads: expected a pos", lambda c=convert, w=wrong: c(FULL, w))
        for wrong in ({"w_q": FULL.w_q}, None, fuse(FULL)):
            refused("params: expected MultiHeadParams", lambda c=convert, w=wrong: c(w, 1))
    refused("member: expected a number from 0 to 2", lambda: select_from_groups(FULL, 1, 3))
    wide = init_multi_head(0, 4, 2, head_dim=5)
    refused("params: expected heads at most 4 wide", lambda: fit_groups(wide, 1))


def test_a_latent_layer_of_other_shapes_is_refused():
    latent = init_latent(0, 8, 5, **SIZES)
    x, angles = jnp.ones((7, 8)), jnp.zeros((7, 1))
    kept = compress(latent, x, angles)
    refused("x: expected axis -1 of .* to be 8", lambda: compress(latent, x[:, :7], angles))
    refused("params: expected no biases", lambda: as_latent(FULL))
    for attention in (expanded_attention, absorbed_attention):
        refused("params: expected LatentParams", lambda a=attention: a(FULL, x, kept, angles))
        for name, weight, message in (
            ("w_uv", latent.w_uv[:5], r"w_uv: expected axes \(R, N, C\) with R = 6; got"),
            ("w_o", latent.w_o[:4], r"w_o: expected axes \(N, C, D\) with N = 5"),
            ("w_uk", latent.w_uk[0], r"w_uk: expected axes \(R, N, H\), rank 3"),
            ("w_q", latent.w_q[..., :5], "w_q: expected axis 2 .* to be 6; got 5"),
            ("w_kr", latent.w_kr.astype(jnp.float16), "w_kr: expected the dtype of w_c"),
            ("norm_qc", jnp.ones(8), "norm_qc: expected None, without w_qc"),
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
    odd = {**SIZES, "rotary_dim": 3}
    refused("rotary_dim: expected an even number; got 3", lambda: init_latent(0, 8, 5, **odd))
