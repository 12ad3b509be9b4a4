"""What the benchmark of removed heads times, and what is expected of it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from pruned_models import Variant, Workload

from mha_book import MultiHeadParams, multi_head_attention
from mha_book.cached_attention import cached_multi_head_attention
from mha_book.kv_cache import KVCache
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.models.smollm2_cached import decode_step, init_caches, prefill
from mha_book.models.smollm2_params import SmolLM2Config, SmolLM2Params
from mha_book.rope import rotary_angles

__all__ = [
    "attention_expected",
    "attention_run",
    "model_expected",
    "model_run",
]

Run = Callable[[], Any]


def inputs_of(config: SmolLM2Config, workload: Workload) -> tuple[np.ndarray, list[np.ndarray]]:
    """Random features (B, T, D), and keys and values (2, B, K, S, H) of the tokens before."""
    rng = np.random.default_rng(workload.length + workload.batch)
    is_prompt = workload.phase == "prefill"
    new, held = (workload.length, 0) if is_prompt else (1, workload.length - 1)
    features = rng.standard_normal((workload.batch, new, config.d_model), np.float32)
    shape = (2, workload.batch, config.num_kv_heads, held, config.head_dim)
    return features, [rng.standard_normal(shape, np.float32) for _ in range(config.num_layers)]


def caches_of(variant: Variant, past: list[np.ndarray]) -> tuple[KVCache, ...]:
    """Caches with one slot to spare, that hold the keys and values of the heads that are left."""

    def one(held: np.ndarray, heads: np.ndarray) -> KVCache:
        keys, values = np.pad(held[:, :, heads], [(0, 0)] * 3 + [(0, 1), (0, 0)])
        lengths = jnp.full((held.shape[1],), held.shape[3], jnp.int32)
        keys = np.ascontiguousarray(np.swapaxes(keys, 2, 3))
        return KVCache(jnp.asarray(keys), jnp.asarray(values), lengths)

    return tuple(one(*pair) for pair in zip(past, variant.key_heads, strict=True))


def again(compiled: Callable[..., Any], caches: tuple[KVCache, ...], *given: Any) -> Run:
    """The same step every time: caches are donated, then counted back by the compiled step."""
    held = [caches]

    def run():
        output, held[0] = compiled(*given, held[0])
        return output

    return run


def counted_back(grown: tuple[KVCache, ...], caches: tuple[KVCache, ...]) -> tuple[KVCache, ...]:
    """The caches after a step, with the lengths of before."""
    pairs = zip(grown, caches, strict=True)
    return tuple(dataclasses.replace(new, lengths=old.lengths) for new, old in pairs)


def attention_run(
    variant: Variant, config: SmolLM2Config, workload: Workload, layers: list[int]
) -> Run:
    """The attention of some layers, one after the other, of the same features; their sum."""
    features, past = inputs_of(config, workload)
    attention = [variant.params.layers[number].attention for number in layers]
    x = jnp.asarray(features)
    if workload.phase == "prefill":
        return functools.partial(_attention_prompt(config), attention, x)
    chosen = [past[number] for number in layers]
    heads = [variant.key_heads[number] for number in layers]
    return again(
        _attention_step(config), caches_of(variant._replace(key_heads=heads), chosen), attention, x
    )


@functools.cache
def _attention_prompt(config: SmolLM2Config) -> Callable[..., Any]:
    def call(attention: list[MultiHeadParams], x: jax.Array) -> jax.Array:
        angles = rotary_angles(jnp.arange(x.shape[1]), config.head_dim, config.rope_theta)
        options: dict[str, Any] = {"mask": causal(), "angles": angles}
        return sum(multi_head_attention(params, x, **options) for params in attention)

    return jax.jit(call)


@functools.cache
def _attention_step(config: SmolLM2Config) -> Callable[..., Any]:
    def call(attention: list[MultiHeadParams], x: jax.Array, caches: Any) -> Any:
        positions = caches[0].lengths[:, None, None]
        angles = rotary_angles(positions, config.head_dim, config.rope_theta)
        pairs = zip(attention, caches, strict=True)
        steps = [cached_multi_head_attention(p, x, c, angles=angles) for p, c in pairs]
        outputs, grown = zip(*steps, strict=True)
        return sum(outputs), counted_back(grown, caches)

    return jax.jit(call, donate_argnums=2)


def attention_expected(
    variant: Variant, config: SmolLM2Config, workload: Workload, layers: list[int]
) -> np.ndarray:
    """The same in float64 without the package, of the heads that are left."""
    features, past = inputs_of(config, workload)
    x, group = features.astype(np.float64), config.num_heads // config.num_kv_heads
    first = 0 if workload.phase == "prefill" else workload.length - 1
    rates = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    turns = np.exp(1j * (first + np.arange(x.shape[1]))[:, None] * rates)

    def turned(heads: np.ndarray) -> np.ndarray:
        pairs = (heads[..., 0::2] + 1j * heads[..., 1::2]) * turns
        return np.stack([pairs.real, pairs.imag], -1).reshape(heads.shape)

    total = np.zeros_like(x)
    for number in layers:
        params = variant.closed.layers[number].attention
        w_q, w_k, w_v, w_o = (np.asarray(w, np.float64) for w in params[:4])
        query, key, value = (np.einsum("btd,dnh->bnth", x, w) for w in (w_q, w_k, w_v))
        new = np.stack([turned(key), value])
        held = np.concatenate([past[number], new], axis=3).repeat(group, axis=2)
        left = np.flatnonzero(variant.keep[number])
        if len(left):
            heads = (turned(query)[:, left], *held[:, :, left])
            (output,) = oracle.attention_float64(*heads, is_causal=first == 0)
            total += np.einsum("bnth,nhd->btd", output, w_o[left])
    return total


def tokens_of(config: SmolLM2Config, workload: Workload) -> jax.Array:
    """Random tokens: (B, T) of a prompt, (B,) of a step."""
    rng = np.random.default_rng(workload.length)
    shape = (workload.batch, workload.length)[: 2 if workload.phase == "prefill" else 1]
    return jnp.asarray(rng.integers(1, config.vocab_size, shape), jnp.int32)


def model_run(variant: Variant, config: SmolLM2Config, workload: Workload) -> Run:
    """The whole model: a prompt read into empty caches, or one more token of each sequence."""
    ids = tokens_of(config, workload)
    if workload.phase == "prefill":
        lengths = jnp.full((workload.batch,), workload.length, jnp.int32)
        caches = init_caches(workload.batch, workload.length, config=config, params=variant.params)
        return functools.partial(_model_prompt(config), variant.params, ids, lengths, caches)
    caches = caches_of(variant, inputs_of(config, workload)[1])
    return again(_model_step(config, None), caches, variant.params, ids)


@functools.cache
def _model_prompt(config: SmolLM2Config) -> Callable[..., Any]:
    return jax.jit(functools.partial(prefill, config=config))


@functools.cache
def _model_step(config: SmolLM2Config, implementation: str | None) -> Callable[..., Any]:
    def call(params: SmolLM2Params, ids: jax.Array, caches: tuple[KVCache, ...]) -> Any:
        options: dict[str, Any] = {"config": config, "implementation": implementation}
        logits, grown = decode_step(params, ids, caches, **options)
        return logits, counted_back(grown, caches)

    return jax.jit(call, donate_argnums=2)


@functools.cache
def _model_forward(config: SmolLM2Config) -> Callable[..., Any]:
    options: dict[str, Any] = {"config": config, "implementation": "reference"}
    return jax.jit(lambda params, ids, gates: smollm2.forward(params, ids, gates=gates, **options))


def model_expected(
    whole: Variant, variant: Variant, config: SmolLM2Config, workload: Workload
) -> np.ndarray:
    """The logits of the whole model with closed heads, in float32, by another path.

    A prompt with gates and without a cache, a step with rows of W_O at zero; both by the reference
    implementation of attention.
    """
    ids = tokens_of(config, workload)
    if workload.phase == "prefill":
        gates = jnp.asarray(variant.keep, jnp.float32)
        return np.asarray(_model_forward(config)(whole.params, ids, gates)[:, -1])
    caches = caches_of(whole, inputs_of(config, workload)[1])
    step = _model_step(config, "reference")
    return np.asarray(step(variant.closed, ids, caches)[0])
