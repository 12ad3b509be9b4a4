"""Wrong calls of the variants of the layer, and of what an automatic search found elsewhere.

The search took a right call of every public function, put one of sixty hostile values in the place
of one argument, or of one field of it, and looked at what was said. The third part of the catalogue
in :mod:`tests.wrong_calls`.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import (
    array_mask,
    attend,
    attention_spec,
    causal,
    fuse,
    init_multi_head,
    padding,
    select,
)
from mha_book.attention.dispatch import AttentionSpec, choices
from mha_book.attention.gradient import row_products, softmax_vjp
from mha_book.attention.platform import target_platform
from mha_book.costs import attention_size, latent_size
from mha_book.layers import layer_norm, linear
from mha_book.models import generation, minilm, smollm2, tiny, tokens
from mha_book.multihead.cache import append, attend_cached, cache_mask, init_cache
from mha_book.multihead.differential import differential_attention
from mha_book.multihead.gradient import multi_head_attention_vjp
from mha_book.multihead.qk_norm import clip_queries_and_keys, normalized_attention
from mha_book.multihead.sinks import gated_attention, sigmoid_attention, sink_logit_attention
from tests.wrong_calls import KEY, PARAMS, RNG_KEY, VALUE, Q, WrongCall, X, bad
from tests.wrong_calls_of_models import IDS, LENGTHS, SMOL, TINY, TINY_CONFIG

B, T, D, N, H = 2, 5, 10, 6, 3  # as X and PARAMS have them
PLAIN = init_multi_head(RNG_KEY, D, N, head_dim=H)


def of_variants() -> list[WrongCall]:
    def differential(balance: Any, params: Any = PARAMS) -> Callable[[], Any]:
        return lambda: differential_attention(params, PARAMS.w_q, balance, X)

    def gated(w_gate: Any) -> Callable[[], Any]:
        return lambda: gated_attention(PARAMS, w_gate, X)

    def clip(threshold: Any) -> Callable[[], Any]:
        return lambda: clip_queries_and_keys(PLAIN, jnp.ones(N), threshold)

    def normalized(norm_q: Any, norm_k: Any) -> Callable[[], Any]:
        return lambda: normalized_attention(PARAMS, norm_q, norm_k, X)

    return [
        bad("differential: params", differential(0.5, fuse(PLAIN)), "params", "MultiHeadParams",
            "Fused"),
        bad("differential: boolean", differential(True), "balance", "a number", "True"),
        bad("differential: text", differential("0.5"), "balance", "a number", "'0.5'"),
        bad("differential: NaN", differential(float("nan")), "balance", "a finite number", "nan"),
        bad("differential: list", differential([0.5]), "balance", "an array", "list"),
        bad("gated: None", gated(None), "w_gate", "an array", "NoneType"),
        bad("gated: width", gated(jnp.ones((9, N, H))), "w_gate", "axis 0", "9"),
        bad("gated: dtype", gated(PARAMS.w_q.astype(jnp.float16)), "w_gate", "float32", "float16"),
        bad("normalized: queries", normalized(jnp.ones(4), jnp.ones(H)), "norm_q", "(H,) = (3,)",
            "(4,)"),
        bad("normalized: keys", normalized(jnp.ones(H), jnp.ones(H, int)), "norm_k", "floating",
            "int32"),
        bad("clip: text", clip("100"), "threshold", "positive", "'100'"),
        bad("clip: huge", clip(10**400), "threshold", "positive", "1000"),
        bad("sink: heads", lambda: sink_logit_attention(PARAMS, jnp.ones(2), X), "sink",
            "(N,) = (6,)", "(2,)"),
        bad("sigmoid: text", lambda: sigmoid_attention(PARAMS, X, offset="1"), "offset",
            "a number", "'1'"),
        bad("sigmoid: one a position",  # broadcasts over the keys
            lambda: sigmoid_attention(PARAMS, X, offset=jnp.ones(T)), "offset", "shape ()", "(5,)"),
        bad("sigmoid: NaN", lambda: sigmoid_attention(PARAMS, X, offset=float("nan")), "offset",
            "a finite number", "nan"),
    ]  # fmt: skip


class Tensor:
    """What an array of another library looks like."""

    shape, ndim, dtype = (2, 5, 10), 3, SimpleNamespace(__name__="torch.float32")


def of_foreign_arrays() -> list[WrongCall]:
    """What has a shape and a dtype, and is none of JAX's arrays or NumPy's."""
    x = np.ones((D,), np.float32)
    strange = {
        "masked": np.ma.masked_array(x, mask=x > 0),  # its mask would be lost
        "bytes exchanged": x.astype(x.dtype.newbyteorder()),
        "more bits": x.astype(np.longdouble),
        "another library": Tensor(),
    }
    cases = []
    for what, array in strange.items():
        kind = type(array).__name__
        cases += [
            bad(f"linear: {what}", lambda x=array: linear(x, jnp.ones((D, 2))), "x",
                "an array of JAX or NumPy", kind),
            bad(f"attend: {what}", lambda x=array: attend(x, x, x), "query",
                "an array of JAX or NumPy", kind),
            bad(f"attend: {what} as a bias", lambda x=array: attend(Q, KEY, VALUE, bias=x), "bias",
                "an array of JAX or NumPy", kind),
        ]  # fmt: skip
    masked = np.ma.masked_array([1, 2], mask=[True, False])
    return [
        *cases,
        bad("padding: masked", lambda: padding(masked), "key_lengths", "an array of integers",
            "masked_array"),
        bad("causal: masked", lambda: causal(masked), "query_offset", "an integer", "int64"),
        bad("explicit: masked", lambda: array_mask(masked[None] > 0), "array", "a boolean array",
            "MaskedArray"),
        bad("explicit: another library", lambda: array_mask(Tensor()), "array", "a boolean array",
            "Tensor"),
        bad("tokens: bytes exchanged",
            lambda: smollm2.forward(SMOL.params, np.asarray(IDS).astype(">i4"),
            config=SMOL.config), "token_ids", "an array of integers", "ndarray"),
    ]  # fmt: skip


def of_numbers_and_flags() -> list[WrongCall]:
    """Numbers that are none, or too large for any computation; text where a truth value stands."""
    one, key = jnp.ones(D), jax.random.key(0)
    spec = AttentionSpec((2, 3, 4), (2, 3, 4), (2, 3, 4), "float32")
    nan, infinite, huge = float("nan"), float("inf"), 10**400
    return [
        *(
            bad(f"attend: scale {value!r:.20}", lambda x=value: attend(Q, KEY, VALUE, scale=x),
                "scale", "a finite number", repr(value)[:4])
            for value in (nan, infinite, -infinite, huge, 1e39, np.float32("nan"), np.True_)
        ),
        bad("norm: epsilon a key", lambda: layer_norm(X, one, one, key), "epsilon", "non-negative",
            "key"),
        bad("norm: epsilon huge", lambda: layer_norm(X, one, one, huge), "epsilon", "non-negative",
            "1000"),
        bad("norm: epsilon complex", lambda: jax.jit(layer_norm)(X, one, one, 1j), "epsilon",
            "non-negative", "complex64"),
        bad("sample: temperature a key", lambda: generation.sample_token(X[0], 0, temperature=key),
            "temperature", "positive", "key"),
        bad("sample: batches", lambda: generation.sample_token(X, 0), "logits", "(B, V)",
            "(2, 5, 10)"),
        bad("init: seed of 100 bits", lambda: init_multi_head(2**100, D, N), "rng_key", "64 bits",
            "1267"),
        bad("init_cache: an array for a dtype", lambda: init_cache(1, 1, 2, 3, dtype=one), "dtype",
            "floating", "Array"),
        bad("spec: wants", lambda: attention_spec(Q, KEY, VALUE, wants="lse"),
            "wants", "some of dropout_multiplier, forward_mode, lse", "'lse'"),
        bad("select: platform", lambda: select(spec._replace(platform=3)), "platform", "str",
            "int"),
        bad("target: platform", lambda: target_platform("amd"), "name", "one of cpu, gpu, tpu",
            "'amd'"),
        bad("choices: heads", lambda: choices(num_heads=None), "num_heads", "positive", "None"),
        bad("choices: lengths", lambda: choices([1.5]), "lengths", "positive integers", "1.5"),
        bad("choices: dtypes", lambda: choices(dtypes="float32"), "dtypes", "floating", "'l'"),
        bad("size: input biases", lambda: attention_size(8, 2, has_input_biases="no"),
            "has_input_biases", "True or False", "'no'"),
        bad("size: output bias", lambda: attention_size(8, 2, has_output_bias=2),
            "has_output_bias", "True or False", "2"),
        bad("latent size: form", lambda: latent_size(8, 2, 4, 2, 2, 2, is_absorbed="expanded"),
            "is_absorbed", "True or False", "'expanded'"),
        bad("softmax_vjp: integers", lambda: softmax_vjp(one, one.astype(int)), "d_weights",
            "floating", "int32"),
        bad("row_products: complex", lambda: row_products(one, one * 1j), "d_x", "floating",
            "complex64"),
        bad("layer vjp: name", lambda: multi_head_attention_vjp(PARAMS, X, implementation=""),
            "implementation", "one of", "''"),
    ]  # fmt: skip


def of_models_that_do_not_fit() -> list[WrongCall]:
    cache = init_cache(B, 2, 9, H)

    def forward(params: Any = TINY, config: Any = TINY_CONFIG, **more: Any) -> Callable[[], Any]:
        return lambda: tiny.forward(params, IDS, config=config, **more)

    def generate(**fields: Any) -> Callable[[], Any]:
        given = {"model": SMOL, "token_ids": IDS, "lengths": LENGTHS, "num_tokens": 2, **fields}
        return lambda: generation.generate(**given)

    table = TINY.position_embedding
    return [
        bad("attend_cached: dict", lambda: attend_cached(Q[:, :, :1], {}), "cache", "KVCache",
            "dict"),
        bad("cache_mask: None", lambda: cache_mask(None, 1), "cache", "KVCache", "NoneType"),
        bad("append: bytes exchanged",
            lambda: append(cache, KEY[..., :3, :], KEY[..., :3, :], np.ones(B, ">i4")), "counts",
            "an array of integers", "ndarray"),
        bad("tiny: one position", forward(TINY._replace(position_embedding=table[:1])),
            "position_embedding", "(8, 8)", "(1, 8)"),  # would be that of all
        bad("tiny: no positions", forward(TINY._replace(position_embedding=None)),
            "position_embedding", "an array", "NoneType"),
        bad("tiny: positions of another model",
            forward(config=replace(TINY_CONFIG, positions="rotary")), "position_embedding",
            "None, as config.positions is 'rotary'", "Array"),
        bad("tiny: narrow tokens", forward(TINY._replace(token_embedding=jnp.ones((11, 1)))),
            "token_embedding", "(11, 8)", "(11, 1)"),
        bad("tiny: vocabulary", forward(TINY._replace(token_embedding=jnp.ones((12, 8)))),
            "token_embedding", "(11, 8)", "(12, 8)"),
        bad("tiny: integers", forward(TINY._replace(token_embedding=jnp.ones((11, 8), int))),
            "token_embedding", "floating", "int32"),
        bad("tiny: init of integers", lambda: tiny.init_tiny(0, TINY_CONFIG, int), "dtype",
            "floating", "int"),
        bad("tiny angles: text", lambda: tiny.angles(TINY_CONFIG, "abc"), "token_ids", "an array",
            "str"),
        bad("tiny angles: positions", lambda: tiny.angles(TINY_CONFIG, IDS, "abc"), "positions",
            "integers", "str"),
        bad("mean_pool: negative", lambda: minilm.mean_pool(X, -LENGTHS), "lengths", "0 to 5",
            "[-3, -5]"),
        bad("mean_pool: too many", lambda: minilm.mean_pool(X, LENGTHS + 1), "lengths", "0 to 5",
            "[4, 6]"),
        bad("generate: config", generate(model=SMOL._replace(config={})), "model.config",
            "SmolLM2Config", "dict"),
        bad("generate: no lengths", generate(lengths=None), "lengths", "integers", "NoneType"),
        bad("prefill: no lengths",
            lambda: smollm2.prefill(SMOL.params, IDS, None,
            smollm2.init_caches(B, 9, config=SMOL.config), config=SMOL.config), "lengths",
            "integers", "NoneType"),
        bad("init_caches: config", lambda: smollm2.init_caches(B, 9, config=None), "config",
            "SmolLM2Config", "NoneType"),
        bad("decode text: characters", lambda: tokens.decode_characters(IDS[0], ["a", "b"]),
            "characters", "str", "list"),
    ]  # fmt: skip


FOUND_CASES: list[WrongCall] = [
    *of_variants(),
    *of_foreign_arrays(),
    *of_numbers_and_flags(),
    *of_models_that_do_not_fit(),
]
