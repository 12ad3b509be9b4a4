"""SmolLM2 over a cache gives what the full forward gives, and writes what transformers writes.

On a small model with random weights, where all must be equal but for rounding; on the trained one
when asked for (``-m slow``). That the full forward is that of transformers is held always.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from mha_book.models import smollm2
from mha_book.models.generation import generate, sample_token
from mha_book.models.smollm2 import decode_step, init_caches, prefill
from mha_book.multihead.cache import init_cache
from tests.turns import in_turn

DATA = Path(__file__).parents[1] / "data"
WRITTEN = DATA / "smollm2_generation.safetensors"


@pytest.fixture(scope="module")
def written():
    return load_file(WRITTEN)


def drawn_ids(small, *shape):
    drawn = np.random.default_rng(0).integers(1, small.config.vocab_size, shape)
    return jnp.asarray(drawn.astype(np.int32))


@functools.cache
def compiled(function):
    names = ("config", "window") if function is smollm2.forward else ("config",)
    donated = () if function is smollm2.forward else ("caches",)
    return jax.jit(function, static_argnames=names, donate_argnames=donated)


@pytest.mark.parametrize("window", [None, 1, 6])
def test_cached_decoding_is_exact_but_for_rounding(small, window):
    """Every logit of two sequences of different lengths in one batch, in float64."""
    config, rows = small.config, np.arange(2)
    first, total = np.array([3, 7]), np.array([19, 23])  # equally many steps for both
    ids = drawn_ids(small, 2, int(total.max()))
    slots = ids.shape[1] if window is None else window
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), small.params)
        lengths = jnp.asarray(total, jnp.int32)
        whole = compiled(smollm2.forward)(params, ids, lengths, window=window, config=config)
        sizes = (2, config.num_kv_heads, slots, config.head_dim)
        caches = tuple(init_cache(*sizes, window=window, dtype=jnp.float64) for _ in params.layers)
        start = jnp.asarray(first, jnp.int32)
        prompts = ids[:, : first.max()]
        logits, caches = compiled(prefill)(params, prompts, start, caches, config=config)
        for at in first + np.arange(total[0] - first[0])[:, None]:
            np.testing.assert_allclose(logits, whole[rows, at - 1], rtol=0, atol=1e-10)
            logits, caches = compiled(decode_step)(params, ids[rows, at], caches, config=config)
        np.testing.assert_allclose(logits, whole[rows, total - 1], rtol=0, atol=1e-10)
    assert caches[0].lengths.tolist() == total.tolist()


def test_greedy_text_is_the_likeliest_token_after_token(small):
    starts = [3, 5]
    token_ids = drawn_ids(small, 2, 5)
    ours = generate(small, token_ids, jnp.asarray(starts, jnp.int32), 4)
    rows = np.zeros((2, 9), np.int32)
    for row, start, ids in zip(rows, starts, np.asarray(token_ids), strict=True):
        row[:start] = ids[:start]
    for step in range(4):
        logits = compiled(smollm2.forward)(small.params, jnp.asarray(rows), config=small.config)
        for number, start in enumerate(starts):
            rows[number, start + step] = int(logits[number, start + step - 1].argmax())
    for row, start, written in zip(rows, starts, ours, strict=True):
        np.testing.assert_array_equal(written, row[start : start + 4])
    assert len(np.unique(ours)) > 3  # not one token over and over


@pytest.mark.slow
@pytest.mark.needs_models
@pytest.mark.optimized
def test_greedy_text_is_that_of_transformers(written):
    prompts = [written[f"prompt_{number}"] for number in range(3)]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    token_ids = np.zeros((3, lengths.max()), np.int32)
    for row, prompt in zip(token_ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    ours = generate(smollm2.load_smollm2(), jnp.asarray(token_ids), jnp.asarray(lengths), 64)
    for number in range(3):
        np.testing.assert_array_equal(ours[number], written[f"written_{number}"])


@in_turn("written")
@pytest.mark.needs_models
@pytest.mark.needs_torch
def test_the_stored_text_is_what_transformers_writes(written):
    pytest.importorskip("transformers", reason="no transformers: make peers")
    from tests.scripts import regenerate_model_references as script

    again = script.generation_arrays(script.PROMPTS[:1])  # one of three: it takes its time
    assert len(again) == 3
    for name, value in again.items():
        np.testing.assert_allclose(value, written[name], rtol=0, atol=1e-3, err_msg=name)


def test_sampling_is_repeatable_and_stops(small):
    token_ids, lengths = drawn_ids(small, 2, 5), jnp.array([4, 5], jnp.int32)
    options = {"rng_key": jax.random.key(3), "temperature": 0.8, "top_k": 40}
    once, again = (generate(small, token_ids, lengths, 9, **options) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert once.shape == (2, 9)
    other = generate(small, token_ids, lengths, 9, **{**options, "rng_key": jax.random.key(4)})
    assert (once != other).any()
    stop = int(once[0, 3])
    stopped = generate(small, token_ids, lengths, 9, **options, stop_ids=[stop])
    first = int(np.argmax(once[0] == stop))
    np.testing.assert_array_equal(stopped[0, : first + 1], once[0, : first + 1])
    assert not stopped[0, first + 1 :].any()


def test_tokens_are_drawn_by_their_probability():
    logits = jnp.log(jnp.array([[0.1, 0.2, 0.7]]))
    draws = jax.vmap(lambda key: sample_token(logits, key))(
        jax.random.split(jax.random.key(0), 2000)
    )
    np.testing.assert_allclose(np.bincount(draws[:, 0]) / 2000, [0.1, 0.2, 0.7], atol=0.04)


def test_a_prompt_of_no_token_is_not_read_from_the_end(small):
    caches = init_caches(2, 4, config=small.config)
    given = small.params, drawn_ids(small, 2, 4)
    with pytest.raises(ValueError, match="lengths: expected numbers from 1 to 4"):
        prefill(*given, jnp.array([0, 4]), caches, config=small.config)
    logits, _ = compiled(prefill)(*given, jnp.array([0, 4]), caches, config=small.config)
    assert np.isnan(logits).all(axis=-1).tolist() == [True, False]


@pytest.mark.parametrize(
    "dtype, temperature", [("float16", 1e-3), ("bfloat16", 1e-9), ("float32", 1e-37)]
)
def test_the_colder_the_surer(dtype, temperature):
    """Divided by a small number, logits below zero are all -inf, and one is no likelier."""
    logits = jnp.array([[-3.0, -5.0, -2.0, -2.5]], dtype)
    for seed in range(2):
        assert sample_token(logits, seed, temperature=temperature).tolist() == [2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_without_a_largest_give_no_token(value):
    logits = jnp.array([[0.0, 1.0], [min(value, 0.0), value]])
    for key in (None, jax.random.key(0)):
        with pytest.raises(ValueError, match=r"logits: expected a finite maximum .* none in \[1\]"):
            sample_token(logits, key)
        assert jax.jit(sample_token)(logits, key)[1] == -1
