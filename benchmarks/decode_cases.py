"""The settings of the decoding benchmark: inputs, what is timed, what is expected."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from peers import cudnn, jax_nn

from mha_book.cached_attention import attend_cached, cache_mask
from mha_book.dispatch import attend
from mha_book.kv_cache import KVCache, append

__all__ = [
    "BASELINE",
    "CONTENDERS",
    "READ",
    "Contender",
    "Inputs",
    "Setting",
    "expected_of",
    "filled_cache",
    "inputs_of",
    "model_step",
    "reading",
    "stepping",
]

BASELINE = "cache"
READ = "read"


class Setting(NamedTuple):
    """The sizes of one comparison."""

    length: int = 8192
    batch: int = 8
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """A short title."""
        heads = f"N={self.heads} K={self.kv_heads} H={self.head_dim}"
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"B={self.batch} {heads} S={self.length}{dtype}"

    @property
    def cache_bytes(self) -> int:
        """What keys and values take."""
        entries = 2 * self.batch * self.kv_heads * self.length * self.head_dim
        return entries * jnp.dtype(self.dtype).itemsize


class Inputs(NamedTuple):
    """Random arrays, heads first: (B, N, 1, H), (B, K, S, H), (B, K, S, C)."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def inputs_of(setting: Setting) -> Inputs:
    """Random query, key and value, seeded by the length."""
    rng = np.random.default_rng(setting.length)
    kv_shape = (setting.batch, setting.kv_heads, setting.length, setting.head_dim)
    query_shape = (setting.batch, setting.heads, 1, setting.head_dim)
    shapes = (query_shape, kv_shape, kv_shape)
    drawn = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return Inputs(*(x.astype(jnp.dtype(setting.dtype), copy=False) for x in drawn))


def expected_of(inputs: Inputs) -> np.ndarray:
    """The float64 output (B, N, 1, C): the queries of a group are rows over the same keys."""
    rows = inputs.query.reshape(*inputs.key.shape[:2], -1, inputs.key.shape[-1])  # (B, K, G, H)
    (output,) = oracle.attention_float64(rows, inputs.key, inputs.value, is_causal=False)
    return output.reshape(*inputs.query.shape[:3], -1)


def filled_cache(inputs: Inputs, lengths: int | None = None) -> KVCache:
    """A cache that holds the keys and values."""
    batch, _, capacity, _ = inputs.key.shape
    keys = jnp.asarray(np.ascontiguousarray(np.swapaxes(inputs.key, 2, 3)))
    count = capacity if lengths is None else lengths
    return KVCache(keys, jnp.asarray(inputs.value), jnp.full((batch,), count, jnp.int32))


Run = Callable[[], Any]


def _cache(inputs: Inputs) -> Run:
    return functools.partial(
        jax.jit(attend_cached), jnp.asarray(inputs.query), filled_cache(inputs)
    )


def _plain_keys(inputs: Inputs) -> Run:
    lengths = filled_cache(inputs).lengths

    def call(query, key, value, lengths):
        cache = KVCache(key, value, lengths)
        return attend(query, key, value, mask=cache_mask(cache, 1), implementation="decode")

    return functools.partial(jax.jit(call), *map(jnp.asarray, inputs), lengths)


def _reference(inputs: Inputs) -> Run:
    call = jax.jit(functools.partial(attend_cached, implementation="reference"))
    return functools.partial(call, jnp.asarray(inputs.query), filled_cache(inputs))


def stepping(inputs: Inputs) -> Run:
    """One step with the cache donated: the last token is appended, then attended to."""

    def step(query, key, value, cache):
        grown = append(cache, key, value)
        return attend_cached(query, grown), dataclasses.replace(grown, lengths=cache.lengths)

    compiled = jax.jit(step, donate_argnums=3)
    query, key, value = (jnp.asarray(x[:, :, -1:]) for x in inputs)
    held = [filled_cache(inputs, inputs.key.shape[2] - 1)]

    def run():
        output, held[0] = compiled(query, key, value, held[0])
        return output

    return run


def reading(setting: Setting) -> Run:
    """A causal pass over as many queries as keys, as when a prompt is read."""
    _, key, value = inputs_of(setting)
    shape = (setting.batch, setting.heads, setting.length, setting.head_dim)
    query = np.random.default_rng(1).standard_normal(shape, np.float32)
    call = jax.jit(functools.partial(attend, is_causal=True))
    return functools.partial(call, *map(jnp.asarray, (query.astype(key.dtype), key, value)))


def _jax_nn(inputs: Inputs, *, convert: bool, attention: Callable[..., jax.Array] = jax_nn) -> Run:
    swap = functools.partial(jnp.swapaxes, axis1=1, axis2=2)

    def call(query, key, value):
        if convert:
            query, key, value = map(swap, (query, key, value))
        output = attention(query, key, value, is_causal=False)
        return swap(output) if convert else output

    arrays = [jnp.asarray(x if convert else np.swapaxes(x, 1, 2).copy()) for x in inputs]
    return functools.partial(jax.jit(call), *arrays)


def _torch(inputs: Inputs) -> Run:
    import torch
    import torch_arrays

    arrays = [torch_arrays.tensor(x) for x in inputs]
    attention = torch.nn.functional.scaled_dot_product_attention

    def run():
        with torch.inference_mode():
            return attention(*arrays, enable_gqa=True)

    return run


def _read(inputs: Inputs) -> Run:
    call = jax.jit(lambda cache: jnp.sum(cache.keys) + jnp.sum(cache.values))
    return functools.partial(call, filled_cache(inputs))


class Contender(NamedTuple):
    """One row: what it needs, how its keys lie in memory, and what it runs.

    Attributes:
        name: as printed and stored.
        package: the distribution that it needs.
        layout: of the keys.
        prepare: from the inputs, a function that runs once.
        remark: what a reader of the table must know.
    """

    name: str
    package: str
    layout: str
    prepare: Callable[[Inputs], Run]
    remark: str


CONTENDERS = (
    Contender(BASELINE, "mha_book", "BKHS", _cache, "attend_cached on a full KVCache"),
    Contender("cache, step", "mha_book", "BKHS", stepping, "append and attend, cache donated"),
    Contender("keys BKSH", "mha_book", "BKSH", _plain_keys, "the same, keys not transposed"),
    Contender("reference", "mha_book", "BKHS", _reference, "attend_cached by the reference"),
    Contender(
        "jax.nn", "jax", "BSKH", functools.partial(_jax_nn, convert=False),
        "jax.nn.dot_product_attention",
    ),
    Contender(
        "jax.nn, converted", "jax", "BKSH", functools.partial(_jax_nn, convert=True),
        "jax.nn.dot_product_attention; with the conversion from heads first and back",
    ),
    Contender(
        "jax.nn cudnn", "jax", "BSKH",
        functools.partial(_jax_nn, convert=False, attention=cudnn),
        "jax.nn's cuDNN",
    ),
    Contender(
        "torch", "torch", "BKSH", _torch, "scaled_dot_product_attention(enable_gqa=True), as called"
    ),
    Contender(READ, "jax", "BKHS", _read, "the sum of all keys and values: the cache read once"),
)  # fmt: skip


@functools.cache
def _smollm2() -> Any:
    """The trained model, read once."""
    from mha_book.models.smollm2 import load_smollm2

    return load_smollm2()


def model_step(length: int) -> Run:
    """One step of SmolLM2 for one sequence with `length` tokens in its caches."""
    from mha_book.models.smollm2_cached import decode_step, init_caches

    model = _smollm2()
    caches = init_caches(1, length, config=model.config)
    held = [tuple(dataclasses.replace(c, lengths=c.lengths + length - 1) for c in caches)]

    def step(params, token_ids, caches):
        logits, grown = decode_step(params, token_ids, caches, config=model.config)
        pairs = zip(grown, caches, strict=True)
        return logits, tuple(dataclasses.replace(new, lengths=old.lengths) for new, old in pairs)

    compiled, tokens = jax.jit(step, donate_argnums=2), jnp.ones((1,), jnp.int32)

    def run():
        logits, held[0] = compiled(model.params, tokens, held[0])
        return logits

    return run
