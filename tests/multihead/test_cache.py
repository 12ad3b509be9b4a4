"""The cache: what a step over it gives, what it refuses, and that nothing of it is copied."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import causal, init_multi_head, multi_head_attention, sliding_window
from mha_book.multihead.cache import (
    KVCache,
    append,
    attend_cached,
    cache_mask,
    cached_multi_head_attention,
    init_cache,
)
from mha_book.rope import rotary_angles
from tests import oracles

B, N, K, H, C, D, T = 3, 6, 2, 4, 5, 11, 17


# Compiled once for each shape; what is cut out is cut by NumPy, where JAX would compile each cut.
put, read = jax.jit(append), jax.jit(attend_cached)


def heads(num: int, length: int, width: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((B, num, length, width)).astype(np.float32)


def entries(length: int = T) -> tuple[np.ndarray, np.ndarray]:
    return heads(K, length, H, 1), heads(K, length, C, 2)


def empty(capacity: int = T, window: int | None = None) -> KVCache:
    return init_cache(B, K, capacity, H, value_dim=C, window=window)


def chunks(sizes: tuple[int, ...]) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


def test_append_puts_tokens_behind_those_of_each_sequence() -> None:
    key, value = entries()
    cache = put(empty(), key[:, :, :5], value[:, :, :5], jnp.array([5, 0, 2]))
    cache = put(cache, key[:, :, 5:8], value[:, :, 5:8], jnp.array([1, 3, 0]))
    cache = jax.tree.map(np.asarray, cache)
    assert cache.lengths.tolist() == [6, 3, 2]
    wanted = {0: [0, 1, 2, 3, 4, 5], 1: [5, 6, 7], 2: [0, 1]}
    for row, tokens in wanted.items():
        np.testing.assert_array_equal(
            np.swapaxes(cache.keys[row], 1, 2)[:, : len(tokens)], key[row][:, tokens]
        )
        np.testing.assert_array_equal(cache.values[row][:, : len(tokens)], value[row][:, tokens])
        assert not cache.values[row][:, len(tokens) :].any()


def test_a_ring_holds_the_last_tokens() -> None:
    key, value = entries()
    cache = put(empty(5, window=5), key[:, :, :12], value[:, :, :12], jnp.array([12, 3, 7]))
    cache = put(cache, key[:, :, 12:13], value[:, :, 12:13], jnp.array([1, 0, 1]))
    cache = jax.tree.map(np.asarray, cache)
    held = {0: [10, 11, 12, 8, 9], 1: [0, 1, 2], 2: [5, 6, 12, 3, 4]}
    for row, tokens in held.items():
        np.testing.assert_array_equal(cache.values[row][:, : len(tokens)], value[row][:, tokens])
        np.testing.assert_array_equal(cache.keys[row][:, :, 0], key[row][:, tokens[0]])


@pytest.mark.parametrize(
    "window, sizes", [(None, (1,) * T), (4, (9, 1, 1, 4, 2)), (None, (T,)), (1, (1,) * T)]
)
def test_layer_over_a_cache_equals_the_layer(window: int | None, sizes: tuple[int, ...]) -> None:
    params = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H, use_bias=True)
    x = np.random.default_rng(3).standard_normal((B, T, D)).astype(np.float32)
    mask = causal() if window is None else causal() & sliding_window(window)
    angles = np.asarray(rotary_angles(jnp.arange(T), H))
    whole = jax.jit(multi_head_attention)(params, x, mask=mask, angles=angles)
    capacity = T if window is None else window + max(sizes) - 1
    cache = init_cache(B, K, capacity, H, window=window)
    step = jax.jit(cached_multi_head_attention, donate_argnums=2)
    parts = []
    for part in chunks(sizes):
        output, cache = step(params, x[:, part], cache, angles=angles[part])
        parts.append(output)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-5)
    assert cache.lengths.tolist() == [T] * B


@pytest.mark.parametrize("window", [None, 3])
def test_ragged_sequences_each_see_their_own(window: int | None) -> None:
    """Rows of different lengths together, against each row alone over plain arrays."""
    key, value = entries(9)
    counts = [np.array([4, 1, 3]), np.array([1, 1, 0]), np.array([2, 0, 3])]
    cache = empty(9 if window is None else window + 3, window=window)
    used = np.zeros(B, int)
    for number, count in enumerate(counts):
        width = int(count.max())
        picks = [list(range(u, u + width)) for u in used]  # beyond the count: not real
        new = [np.stack([x[b][:, picks[b]] for b in range(B)]) for x in (key, value)]
        query = heads(N, width, H, 10 + number)
        cache = put(cache, *new, count)
        output = np.asarray(read(query, cache, count))
        for b in range(B):
            total, real = int(used[b] + count[b]), int(count[b])
            assert not output[b, :, real:].any()
            if not real:
                continue
            offset = int(used[b])
            mask = causal(offset)
            mask = mask if window is None else mask & sliding_window(window, query_offset=offset)
            seen = np.asarray(mask.materialize(real, total))
            kept = key[b, :, :total], value[b, :, :total]
            alone, _, _ = oracles.attention(query[b, :, :real], *kept, seen)
            np.testing.assert_allclose(output[b, :, :real], alone, atol=1e-5)
        used += count


def test_the_mask_of_a_full_cache_is_structure() -> None:
    none = jnp.zeros((B,), jnp.int32)  # of new tokens: nothing is appended here
    assert cache_mask(empty(), 1, none).array is None
    assert cache_mask(empty(4, window=4), 1, none).array.shape == (B, 1, 1, 4)


def test_overflow_inside_jit_gives_nan_for_that_sequence_alone() -> None:
    key, value = entries(5)
    full = put(empty(5), key, value, jnp.array([5, 4, 2]))
    more, query = (key[:, :, :1], value[:, :, :1]), heads(N, 1, H)
    over = put(full, *more)
    assert over.lengths.tolist() == [6, 5, 3]
    kept = (np.asarray(cache.keys)[0] for cache in (over, full))
    np.testing.assert_array_equal(*kept)  # nothing overwritten
    output = np.asarray(read(query, over))
    assert np.isnan(output[0]).all()
    assert np.isfinite(output[1:]).all()


def test_a_ring_refuses_what_it_would_have_overwritten() -> None:
    key, value = entries(3)
    cache = put(empty(5, window=4), key, value)
    with pytest.raises(ValueError, match=r"expected window \+ T - 1 = 6 slots or more.*got 5"):
        attend_cached(jnp.asarray(heads(N, 3, H)), cache)


# What the compiled step does with the cache. These sizes are found in no other array.
LONG, WIDE = 1031, 67


def step(
    query: jax.Array, key: jax.Array, value: jax.Array, cache: KVCache
) -> tuple[jax.Array, KVCache]:
    cache = append(cache, key, value)
    return attend_cached(query, cache), cache


def loop(
    query: jax.Array, key: jax.Array, value: jax.Array, cache: KVCache
) -> tuple[jax.Array, KVCache]:
    def body(_: int, carry: tuple) -> tuple:
        return step(carry[0], key, value, carry[1])

    return jax.lax.fori_loop(0, 7, body, (query, cache))


@pytest.mark.optimized
@pytest.mark.parametrize("window", [None, LONG])
@pytest.mark.parametrize("function", [step, loop])
def test_the_compiled_step_copies_nothing(function: object, window: int | None) -> None:
    cache = init_cache(2, K, LONG, WIDE, window=window)
    arguments = (jnp.ones((2, N, 1, WIDE)), *[jnp.ones((2, K, 1, WIDE))] * 2)
    compiled = jax.jit(function, donate_argnums=3).lower(*arguments, cache).compile()
    text = compiled.as_text()
    (aliases,) = re.findall(r"input_output_alias=\{(.*?)\}, entry", text)
    assert sorted(re.findall(r"\{(\d)\}: \((\d)", aliases)) == [("1", "3"), ("2", "4"), ("3", "5")]
    size = rf"(\[2,{K},{WIDE},{LONG}\]|\[2,{K},{LONG},{WIDE}\])\S* (copy|transpose|copy-start)\("
    assert re.findall(size, text) == []
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= cache.keys.nbytes + cache.values.nbytes
    assert memory.temp_size_in_bytes < cache.keys.nbytes
