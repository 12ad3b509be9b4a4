"""A catalogue of wrong calls, each with the error that it has to raise.

An error is *good* if it is ours and names the argument, what was expected and what came; *poor* if
it comes from inside JAX, NumPy or another library, or does not name the argument; a call without an
error is *silent*, the worst of the three. :func:`judge` says which of them a call is.

What no program can see has no error: :data:`UNSEEN` lists it.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from mha_book import (
    Mask,
    array_mask,
    attend,
    attention_spec,
    attention_weights,
    causal,
    combine_heads,
    fuse,
    identity_params,
    init_multi_head,
    multi_head_attention,
    padding,
    scaled_dot_product_attention,
    segments,
    select,
    sliding_window,
    split_heads,
    unfuse,
)
from mha_book.attention import online_softmax
from mha_book.attention.flash import flash_attention
from mha_book.attention.gradient import (
    attention_vjp,
    backward,
    broadcast_vjp,
    forward,
    row_products,
    scores_vjp,
    softmax_jacobian,
    softmax_vjp,
    values_vjp,
)
from mha_book.attention.online_softmax import SoftmaxState
from mha_book.attention.operands import prepare
from mha_book.heads import heads_first
from mha_book.layers import gelu, layer_norm, linear, rms_norm, swiglu
from mha_book.masks import as_mask
from mha_book.models import tiny
from mha_book.models.generation import sample_token
from mha_book.models.tiny import TinyLayer, TinyParams
from mha_book.multihead.cache import (
    append,
    attend_cached,
    cache_mask,
    cached_multi_head_attention,
    init_cache,
)
from mha_book.multihead.dropout import Dropout, draw_factors, dropout, dropout_factors
from mha_book.multihead.gradient import (
    combine_outputs_vjp,
    gates_vjp,
    multi_head_attention_vjp,
    project_heads_vjp,
    rotate_vjp,
)
from mha_book.multihead.grouped import (
    fit_groups,
    kv_head_index,
    mean_pool_groups,
    reinitialize_groups,
    repeat_kv_heads,
    select_from_groups,
)
from mha_book.multihead.latent import compress, expanded_attention, init_latent
from mha_book.multihead.layer import (
    project_heads,
    project_output,
    project_qkv,
)
from mha_book.multihead.parameters import check_params, normal, xavier_uniform
from mha_book.pruning import hard_concrete, importance
from mha_book.pruning.order import (
    head_mask,
    iterative_removal_order,
    rank_correlation,
    removal_order,
)
from mha_book.pruning.removal import fold_gates, mean_ablation, prune_heads, prune_model
from mha_book.rope import rotary_angles, rotate
from mha_book.sharding import (
    MeshAxes,
    MeshSizes,
    all_to_all_attention,
    balance,
    make_placement,
    place,
    plan_cost,
    restore,
    ring_attention,
    shard_cache,
    shard_params,
    sharded_multi_head_attention,
)
from mha_book.specialization import (
    contribution,
    intervals,
    measures,
    patterns,
    similarity,
    synthetic,
    words,
)
from mha_book.specialization.composition import block_norms, composition
from mha_book.storage import find_package, load_tree, write_table

B, N, K, T, S, H, C, D = 2, 6, 2, 5, 7, 3, 11, 10

Q = jnp.ones((B, N, T, H))
KEY = jnp.ones((B, K, S, H))
VALUE = jnp.ones((B, K, S, C))
X, Z = jnp.ones((B, T, D)), jnp.ones((B, S, D))
PARAMS = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H, use_bias=True)
FUSED = fuse(PARAMS)
RNG_KEY = jax.random.key(0)
SQUARE = jnp.ones((B, T, T, H))


class WrongCall(NamedTuple):
    """A call that must raise, and parts of what it must say.

    Args:
        name: of the case; what stands before the colon is what is called.
        call: of no arguments.
        argument: how the message names the argument.
        expected: part of what it says that was expected.
        got: part of what it says that came.
        known: where the call is not refused yet: which module would have to. Empty elsewhere.
    """

    name: str
    call: Callable[[], Any]
    argument: str
    expected: str
    got: str
    known: str = ""


bad = WrongCall


def judge(case: WrongCall) -> tuple[str, str]:
    """Return "good", "poor" or "silent", and what was raised or returned."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in use: a warning stops nobody
            result = case.call()
    except (ValueError, TypeError, NotImplementedError) as error:
        said = f"{type(error).__name__}: {error}"
        pattern = rf"{re.escape(case.argument)}: expected (.+); got (.+)"
        match = re.fullmatch(pattern, str(error), re.DOTALL)
        is_good = match and case.expected in match[1] and case.got in match[2]
        return ("good" if is_good else "poor"), said
    except Exception as error:
        return "poor", f"{type(error).__name__}: {error}"
    return "silent", f"returned {result!r}"[:200]


def of_heads() -> list:
    return [
        bad("split: rank", lambda: split_heads(jnp.ones(6), 2), "x", "(…, T, N·H)", "shape (6,)"),
        bad("split: indivisible", lambda: split_heads(X, 3), "num_heads", "divides", "3"),
        bad("split: zero", lambda: split_heads(X, 0), "num_heads", "positive integer", "0"),
        bad("split: negative", lambda: split_heads(X, -2), "num_heads", "positive", "-2"),
        bad("split: float", lambda: split_heads(X, 2.0), "num_heads", "integer", "2.0"),
        bad("split: no array", lambda: split_heads([[1, 2]], 2), "x", "an array", "list"),
        bad(
            "combine: rank", lambda: combine_heads(jnp.ones((2, 3))), "x", "(…, N, T, H)", "rank 2"
        ),
        bad("combine: a vector", lambda: combine_heads(jnp.ones(3)), "x", "rank 3", "shape (3,)"),
        bad("combine: a scalar", lambda: combine_heads(jnp.ones(())), "x", "rank 3", "shape ()"),
        bad("combine: no array", lambda: combine_heads([[[1]]]), "x", "an array", "list"),
        bad("combine: None", lambda: combine_heads(None), "x", "an array", "NoneType"),
        bad("layout", lambda: heads_first(Q, "BTNH"), "layout", "one of NTH, TNH", "'BTNH'"),
    ]


def of_masks() -> list:
    lengths = jnp.array([1.0, 2.0])
    square = jnp.ones((1, 1, T, S), bool)
    return [
        bad("causal: float", lambda: causal(1.5), "query_offset", "an integer", "1.5"),
        bad("causal: boolean", lambda: causal(True), "query_offset", "an integer", "True"),
        bad("causal: float array", lambda: causal(lengths), "query_offset", "integers", "float32"),
        bad("causal: None", lambda: causal(None), "query_offset", "an integer", "None"),
        bad("causal: text", lambda: causal("3"), "query_offset", "an integer", "'3'"),
        bad(
            "causal: unsigned",  # which would wrap below zero
            lambda: causal(jnp.array(3, jnp.uint8)), "query_offset", "an integer", "uint8",
        ),
        bad("window: negative left", lambda: sliding_window(0), "window", "positive", "0"),
        bad("window: negative right", lambda: sliding_window(2, -2), "right", "non-neg", "-2"),
        bad("window: float", lambda: sliding_window(1.5), "window", "integer", "1.5"),
        bad("window: boolean", lambda: sliding_window(True), "window", "integer", "True"),
        bad("window: array", lambda: sliding_window(jnp.array(2)), "window", "integer", "Array"),
        bad(
            "window: offset", lambda: sliding_window(2, 1, 0.5), "query_offset", "integer", "0.5"
        ),
        bad("padding: float", lambda: padding(lengths), "key_lengths", "integers", "float32"),
        bad("padding: int", lambda: padding(3), "key_lengths", "an array of integers", "int"),
        bad("padding: list", lambda: padding([1, 2]), "key_lengths", "an array", "list"),
        bad("padding: None", lambda: padding(None), "key_lengths", "an array", "NoneType"),
        bad(
            "padding: boolean",
            lambda: padding(jnp.ones(2, bool)), "key_lengths", "array of integers", "bool",
        ),
        bad(
            "padding: queries",
            lambda: padding(jnp.array([1]), lengths), "query_lengths", "integers", "float32",
        ),
        bad("explicit: float", lambda: array_mask(Q), "array", "boolean", "float32"),
        bad("explicit: integer", lambda: array_mask(Q.astype(int)), "array", "boolean", "int32"),
        bad("explicit: a vector", lambda: array_mask(jnp.ones(3, bool)), "array", "rank 2", "(3,)"),
        bad("explicit: list", lambda: array_mask([[True]]), "array", "boolean array", "list"),
        bad("explicit: None", lambda: array_mask(None), "array", "boolean array", "NoneType"),
        bad("segments: list", lambda: segments([0, 1]), "query_ids", "integers", "list"),
        bad("segments: float", lambda: segments(Q), "query_ids", "integers", "float32"),
        bad("segments: one", lambda: segments(jnp.array(1)), "query_ids", "axes (…, T)", "rank 0"),
        bad("segments: batch", lambda: segments(lengths[None].astype(int), lengths.astype(int)),
            "key_ids", "the batch axes of query_ids, (1,)", "shape (2,)"),
        bad("segments: length", lambda: segments(jnp.ones(3, int)).materialize(4, 3),
            "mask.query_segments", "each of 4 positions", "shape (3,)"),
        bad("==: arrays", lambda: padding(jnp.array([1])) == padding(jnp.array([1])), "mask",
            "without arrays to be compared", "one with 1"),
        bad("hash: arrays", lambda: hash(padding(jnp.array([1]))), "mask",
            "without arrays to be hashed", "one with 1"),
        bad("and: no mask", lambda: causal() & square, "other (right of &)", "a Mask", "Array"),
        bad("and: None", lambda: causal() & None, "other (right of &)", "a Mask", "NoneType"),
        bad(
            "and: two ranks",  # (B, S) would be taken for (T, S)
            lambda: array_mask(square) & array_mask(jnp.ones((B, S), bool)),
            "other (right of &)", "rank 4", "rank 2, shape (2, 7)",
        ),
    ]  # fmt: skip


def of_operands(name: str, call: Callable[..., Any], has_value: bool) -> list:
    """What every function on query and key (and value) has to refuse."""

    def on(query: Any = Q, key: Any = KEY, value: Any = VALUE, **given: Any) -> Callable[[], Any]:
        return lambda: call(query, key, *([value] if has_value else []), **given)

    full = "(…, N, T, S) = (2, 6, 5, 7)"
    cases = [
        ("query rank", on(jnp.ones(3)), "query", "rank", "rank 1"),
        ("key rank", on(key=jnp.ones((S, H))), "key", "(…", "rank 2"),
        ("query dtype", on(Q.astype(int)), "query", "floating-point", "int32"),
        ("key dtype", on(key=KEY.astype(jnp.bfloat16)), "key", "float32", "bfloat16"),
        ("key width", on(key=KEY[..., :2]), "key", "axis -1", "2, shape (2, 2, 7, 2)"),
        ("indivisible heads", on(Q[:, :5]), "key", "divides the 5 query heads", "K = 2"),
        ("too many key heads", on(Q[:, :1]), "key", "divides the 1 query heads", "K = 2"),
        ("batch", on(key=KEY[:1]), "key", "leading axes of query, (2,)", "(1,)"),
        ("no array", on(None), "query", "", "None"),
        ("mask (B, S)", on(mask=jnp.ones((B, S), bool)), "mask", full, "shape (2, 7)"),
        ("mask (T, S)", on(mask=jnp.ones((T, S), bool)), "mask", full, "shape (5, 7)"),
        ("mask axis", on(mask=jnp.ones((B, K, T, S), bool)), "mask", full, "(2, 2, 5, 7)"),
        ("mask dtype", on(mask=jnp.ones((1, 1, T, S))), "mask", "boolean", "float32"),
        ("mask type", on(mask="causal"), "mask", "a Mask or a boolean array", "str"),
        (
            "explicit (B, S)",
            on(mask=array_mask(jnp.ones((B, S), bool))), "mask", full, "shape (2, 7)",
        ),
        ("lengths", on(mask=padding(jnp.array([1, 2, 3]))), "mask.key_lengths", "(2,)", "(3,)"),
        ("segments", on(mask=segments(jnp.ones((B, T), int))), "mask.key_segments", "(2, 7)",
         "shape (2, 5)"),
        ("offset and is_causal", on(mask=causal(5), is_causal=True), "is_causal",
         "write causal() & mask", "the query offset 5"),
        ("one length", on(mask=padding(jnp.array(3))), "mask.key_lengths", "(2,)", "shape ()"),
        (
            "query lengths",
            on(mask=Mask(query_lengths=jnp.ones((B, T), int))), "mask.query_lengths", "(2,)",
            "(2, 5)",
        ),
        ("offsets", on(mask=causal(jnp.array([1, 2, 3]))), "mask.upper", "(2,)", "(3,)"),
        ("bias rank", on(bias=jnp.ones((T, S))), "bias", full, "shape (5, 7)"),
        ("bias axis", on(bias=jnp.ones((1, 1, S, T))), "bias", full, "(1, 1, 7, 5)"),
        ("bias dtype", on(bias=jnp.ones((1, 1, T, S), bool)), "bias", "floating-point", "bool"),
    ]  # fmt: skip
    if has_value:
        cases += [
            ("value rank", on(value=jnp.ones((S, C))), "value", "(…", "rank 2"),
            ("value dtype", on(value=VALUE.astype(jnp.float16)), "value", "float32", "float16"),
            ("value length", on(value=VALUE[:, :, 1:]), "value", "axis -2", "6, shape"),
            ("value heads", on(value=VALUE[:, :1]), "value", "axis -3", "1, shape"),
            ("value batch", on(value=VALUE[:1]), "value", "(2,)", "(1,)"),
        ]
    return [bad(f"{name}: {case[0]}", *case[1:]) for case in cases]


def of_dispatch() -> list:
    one_head = jnp.ones((T, H))
    name, layout = {"implementation": "flash"}, {"layout": "BNTH"}
    return [
        bad(
            "attend: name",
            lambda: attend(Q, KEY, VALUE, **name), "implementation", "cudnn, splash", "flash",
        ),
        bad("attend: layout", lambda: attend(Q, KEY, VALUE, **layout), "layout", "NTH", "'BNTH'"),
        bad("spec: layout", lambda: attention_spec(Q, KEY, VALUE, **layout), "layout", "TNH", "BN"),
        bad(
            "attend: the other layout's rank",
            lambda: attend(one_head, one_head, one_head, layout="TNH"),
            "query", "(…, T, N, H)", "rank 2",
        ),
        bad(
            "attend: the other layout",  # heads last: T and N change places, 5 heads are 7 keys
            lambda: attend(Q, KEY, VALUE, layout="TNH"), "key",
            "divides the 5 query heads", "K = 7",
        ),
    ]  # fmt: skip


def changed(**fields: Any) -> Callable[[], Any]:
    return lambda: multi_head_attention(PARAMS._replace(**fields), X)


def of_the_layer() -> list:
    def on(*inputs: Any, **given: Any) -> Callable[[], Any]:
        return lambda: multi_head_attention(PARAMS, *inputs, **given)

    full = "(…, N, T, S) = (2, 6, 5, 5)"
    return [
        bad("layer: query rank", on(jnp.ones(D)), "query", "(…, T, D)", "rank 1"),
        bad("layer: query width", on(X[..., :7]), "query", "axis -1", "7, shape (2, 5, 7)"),
        bad("layer: key width", on(X, Z[..., :7]), "key", "axis -1", "7, shape (2, 7, 7)"),
        bad("layer: dtype", on(X.astype(jnp.bfloat16)), "query", "the weights", "bfloat16"),
        bad("layer: integers", on(X.astype(int)), "query", "floating-point", "int32"),
        bad("layer: key batch", on(X, Z[:1]), "key", "leading axes of query, (2,)", "(1,)"),
        bad("layer: lengths differ", on(X, Z, Z[:, 1:]), "value", "axis -2", "6, shape"),
        bad("layer: gates", on(X, gates=jnp.ones(K)), "gates", "(6,)", "shape (2,)"),
        bad("layer: gates dtype", on(X, gates=jnp.ones(N, int)), "gates", "floating", "int32"),
        bad(
            "layer: wide gates",
            on(X, gates=jnp.ones(N, jnp.float16)),
            "gates",
            "float32",
            "float16",
        ),
        bad("layer: mask", on(X, mask=jnp.ones((B, T), bool)), "mask", full, "shape (2, 5)"),
        bad("layer: bias", on(X, bias=jnp.ones((T, T))), "bias", full, "shape (5, 5)"),
        bad("layer: name", on(X, implementation="fast"), "implementation", "reference", "fast"),
        bad("w_q rank", changed(w_q=jnp.ones((D, 18))), "w_q", "(D, N, H)", "(10, 18)"),
        bad("w_k heads", changed(w_k=jnp.ones((D, 4, H))), "w_k", "(any, 2, 3)", "(10, 4, 3)"),
        bad("w_k width", changed(w_k=jnp.ones((D, K, 4))), "w_k", "(any, 2, 3)", "(10, 2, 4)"),
        bad(
            "w_o", changed(w_o=jnp.ones((H, N, D))), "w_o", "(N, C, D) = (6, 3, any)", "(3, 6, 10)"
        ),
        bad("w_v dtype", changed(w_v=PARAMS.w_v.astype(jnp.float16)), "w_v", "float32", "float16"),
        bad("b_q", changed(b_q=jnp.ones((H, N))), "b_q", "(6, 3)", "(3, 6)"),
        bad("b_k", changed(b_k=jnp.ones(K * H)), "b_k", "(2, 3)", "(6,)"),
        bad("b_o", changed(b_o=jnp.ones(N)), "b_o", "(10,)", "(6,)"),
        bad("b_v dtype", changed(b_v=jnp.ones((K, H), jnp.bfloat16)), "b_v", "float32", "bfloat16"),
        bad("project: rank", lambda: project_heads(jnp.ones(3), Q[0]), "x", "(…, T, D)", "rank 1"),
        bad("project: weight", lambda: project_heads(X, X[0]), "weight", "(D, N, H)", "(5, 10)"),
        bad("project: width", lambda: project_heads(X, Q[0]), "weight", "axis 0", "6, shape"),
    ]


def of_parameters() -> list:
    def fusing(**fields: Any) -> Callable[[], Any]:
        return lambda: fuse(PARAMS._replace(**fields))

    def unfusing(**fields: Any) -> Callable[[], Any]:
        return lambda: unfuse(FUSED._replace(**fields))

    def init(*sizes: Any, **more: Any) -> Callable[[], Any]:
        return lambda: init_multi_head(RNG_KEY, *sizes, **more)

    wide = {"w_v": jnp.ones((D, K, C)), "w_o": jnp.ones((N, C, D)), "b_v": None}
    small = {"w_k": jnp.ones((D, 4, H)), "w_v": jnp.ones((D, 4, H)), "b_k": None, "b_v": None}
    return [
        bad("fuse: value width", fusing(**wide), "params", "one head width", "(10, 11)"),
        bad("fuse: input width", fusing(w_k=jnp.ones((7, K, H))), "params", "one input", "(7, 3)"),
        bad("fuse: some biases", fusing(b_k=None), "params", "all of b_q", "2"),
        bad("fuse: rank", fusing(w_q=jnp.ones((D, 18))), "w_q", "rank 3", "(10, 18)"),
        bad("fuse: dtype", fusing(w_k=jnp.ones((D, K, H), int)), "w_k", "floating", "int32"),
        bad("unfuse: odd", unfusing(w_qkv=FUSED.w_qkv[:, :9]), "w_qkv", "N + 2K", "9, shape"),
        bad("unfuse: too few", unfusing(w_qkv=FUSED.w_qkv[:, :6]), "w_qkv", "N + 2K", "6, shape"),
        bad("unfuse: rank", unfusing(w_qkv=jnp.ones((D, 30))), "w_qkv", "rank 3", "(10, 30)"),
        bad("unfuse: w_o", unfusing(w_o=jnp.ones(())), "w_o", "(N, H, D)", "rank 0"),
        bad("unfuse: bias", unfusing(b_qkv=jnp.ones((6, 3))), "b_qkv", "(10, 3)", "(6, 3)"),
        bad(
            "check: heads", lambda: check_params(PARAMS._replace(**small)), "w_k",
            "divides N = 6", "4",
        ),
        bad("init: indivisible", init(D, 3), "num_heads", "d_model = 10", "3"),
        bad("init: zero", init(D, 0), "num_heads", "positive", "0"),
        bad("init: float", init(10.0, 2), "d_model", "integer", "10.0"),
        bad("init: kv heads", init(D, 2, num_kv_heads=3), "num_kv_heads", "num_heads = 2", "3"),
        bad("init: width", init(D, 2, head_dim=-1), "head_dim", "positive", "-1"),
        bad("init: value width", init(D, 2, value_dim=0), "value_dim", "positive", "0"),
        bad("identity: indivisible", lambda: identity_params(6, 4), "num_heads", "divisor", "4"),
        bad("identity: zero", lambda: identity_params(6, 0), "num_heads", "positive", "0"),
        bad("identity: negative", lambda: identity_params(6, -2), "num_heads", "positive", "-2"),
        bad("identity: float", lambda: identity_params(6, 2.0), "num_heads", "divisor", "2.0"),
        bad("identity: text", lambda: identity_params(6, "2"), "num_heads", "divisor", "'2'"),
    ]  # fmt: skip


def of_layers() -> list:
    one = jnp.ones(D)
    half = one.astype(jnp.bfloat16)
    weight = jnp.ones((D, 4))
    return [
        bad("linear: scalar", lambda: linear(jnp.ones(()), weight), "x", "(…, D)", "rank 0"),
        bad("linear: weight rank", lambda: linear(X, one), "weight", "(D, F)", "(10,)"),
        bad("linear: width", lambda: linear(X, weight.T), "weight", "axis 0", "4, shape (4, 10)"),
        bad("linear: bias", lambda: linear(X, weight, one), "bias", "axis 0", "10, shape"),
        bad("linear: bias rank", lambda: linear(X, weight, weight), "bias", "rank 1", "(10, 4)"),
        bad("linear: integers", lambda: linear(X.astype(int), weight), "x", "floating", "int32"),
        bad(
            "linear: dtype",
            lambda: linear(X, weight.astype(jnp.float16)), "weight", "float32", "float16",
        ),
        bad("norm: scalar", lambda: layer_norm(jnp.ones(()), one, one), "x", "(…, D)", "rank 0"),
        bad("norm: weight", lambda: layer_norm(X, one[1:], one), "weight", "axis 0", "9, shape"),
        bad("norm: bias", lambda: layer_norm(X, one, one[1:]), "bias", "axis 0", "9, shape"),
        bad("norm: rank", lambda: layer_norm(X, X, one), "weight", "rank 1", "(2, 5, 10)"),
        bad("norm: epsilon", lambda: layer_norm(X, one, one, -1.0), "epsilon", "non-neg", "-1.0"),
        bad("norm: integers", lambda: layer_norm(X.astype(int), one, one), "x", "float", "int32"),
        bad("norm: dtype", lambda: layer_norm(X, half, one), "weight", "float32", "bfloat16"),
        bad("gelu: integers", lambda: gelu(jnp.arange(3)), "x", "floating-point", "int32"),
        bad("gelu: booleans", lambda: gelu(jnp.ones(3, bool)), "x", "floating-point", "bool"),
        bad("gelu: number", lambda: gelu(1.0), "x", "an array", "float"),
        bad("gelu: list", lambda: gelu([1.0]), "x", "an array", "list"),
        bad("gelu: None", lambda: gelu(None), "x", "an array", "NoneType"),
    ]  # fmt: skip


def of_more_heads() -> list[WrongCall]:
    """Booleans and text for numbers, and arrays that have no heads."""
    return [
        bad("split: boolean", lambda: split_heads(X, True), "num_heads", "integer", "True"),
        bad("split: None", lambda: split_heads(X, None), "num_heads", "integer", "None"),
        bad("split: text", lambda: split_heads(X, "2"), "num_heads", "integer", "'2'"),
        bad("split: array", lambda: split_heads(X, jnp.array(2)), "num_heads", "integer", "Array"),
        bad("split: swapped", lambda: split_heads(2, X), "x", "an array", "int"),
        bad("layout: list", lambda: heads_first([[1.0]], "TNH"), "x", "an array", "list"),
        bad("layout: rank", lambda: heads_first(X[0], "TNH"), "x", "(…, T, N, H)", "rank 2"),
        bad("layout: None", lambda: heads_first(Q, None), "layout", "one of NTH, TNH", "None"),
        bad("layout: lower case", lambda: heads_first(Q, "tnh"), "layout", "one of", "'tnh'"),
    ]


def of_more_masks() -> list[WrongCall]:
    """Masks by their constructor, by Python's operators, and by their lengths."""
    some = jnp.array([1, 2])
    one = jnp.ones((1, 1, T, S), bool)

    def used(mask: Any) -> Callable[[], Any]:
        return lambda: attend(Q, KEY, VALUE, mask=mask)

    combine = "&, | or ~ between masks"
    return [
        bad("and: word", lambda: causal() and sliding_window(3), "mask", combine, "truth value"),
        bad("or: word", lambda: causal() or sliding_window(3), "mask", combine, "truth value"),
        bad("not: word", lambda: not causal(), "mask", combine, "truth value"),
        bad("or: no mask", lambda: causal() | one, "other (right of |)", "a Mask", "Array"),
        bad("and: array first", lambda: one & causal(), "other (left of & or |)", "Mask", "Array"),
        bad("or: array first", lambda: one | causal(), "other (left of & or |)", "a Mask", "Array"),
        bad(
            "and: numpy first",
            lambda: np.ones((T, S), bool) & causal(), "other (left of & or |)", "a Mask", "ndarray",
        ),
        bad("and: True first", lambda: True & causal(), "other (left of & or |)", "a Mask", "bool"),
        bad("mask: float array", used(Mask(array=one.astype(float))), "mask", "boolean", "float"),
        bad("mask: list", used(Mask(array=[[True]])), "mask", "boolean", "list"),
        bad("mask: float bound", used(Mask(upper=1.5)), "mask.upper", "integer", "1.5"),
        bad("mask: boolean bound", used(Mask(upper=True)), "mask.upper", "integer", "True"),
        bad("mask: text bound", used(Mask(lower="0")), "mask.lower", "integer", "'0'"),
        bad(
            "mask: float bounds",
            used(Mask(lower=jnp.array([1.0, 2.0]))), "mask.lower", "integers", "float32",
        ),
        bad(
            "mask: unsigned bounds",
            used(Mask(lower=jnp.array([1, 2], jnp.uint8))), "mask.lower", "integers", "uint8",
        ),
        bad(
            "mask: list of lengths",
            used(Mask(key_lengths=[1, 2])), "mask.key_lengths", "array of integers", "list",
        ),
        bad(
            "mask: integer length", used(Mask(key_lengths=3)), "mask.key_lengths",
            "array of integers", "int",
        ),
        bad(
            "mask: boolean lengths",
            used(Mask(key_lengths=jnp.array([True, False]))), "mask.key_lengths", "integers",
            "bool",
        ),
        bad("padding: negative", lambda: padding(-some), "key_lengths", "0 or more", "[-1, -2]"),
        bad(
            "padding: negative queries",
            lambda: padding(some, -some), "query_lengths", "0 or more", "[-1, -2]",
        ),
        bad("padding: beyond S", used(padding(some + S)), "mask.key_lengths", "0 to 7", "[8, 9]"),
        bad(
            "padding: beyond T",
            used(padding(some, some + T)), "mask.query_lengths", "0 to 5", "[6, 7]",
        ),
        bad(
            "padding: in a union",
            used(causal() | padding(some + S)), "mask.key_lengths", "0 to 7", "[8, 9]",
        ),
        bad(
            "materialize: float", lambda: causal().materialize(2.0, 3), "query_length", "integer",
            "2.0",
        ),
        bad(
            "materialize: negative",
            lambda: causal().materialize(2, -3), "key_length", "non-negative", "-3",
        ),
        bad(
            "materialize: boolean",
            lambda: causal().materialize(True, 3), "query_length", "integer", "True",
        ),
        bad(
            "materialize: a shape",
            lambda: causal().materialize((2, 3), 3), "query_length", "integer", "(2, 3)",
        ),
        bad("window: text", lambda: sliding_window("2"), "window", "integer", "'2'"),
        bad("explicit: a mask", lambda: array_mask(causal()), "array", "boolean", "Mask"),
        bad("as_mask: text", lambda: as_mask(None, "no", (3, 3)), "is_causal", "True", "'no'"),
    ]  # fmt: skip


def of_more_operands(name: str, call: Callable[..., Any], has_value: bool) -> list[WrongCall]:
    """Meaning by accident, and other types than arrays."""

    def on(query: Any = Q, key: Any = KEY, value: Any = VALUE, **given: Any) -> Callable[[], Any]:
        return lambda: call(query, key, *([value] if has_value else []), **given)

    flag, number = "True or False", "a number or an array of shape ()"
    cases = [
        ("scale of keys", on(scale=jnp.arange(float(S))), "scale", number, "shape (7,)"),
        ("scale of features", on(scale=jnp.arange(float(H))), "scale", number, "shape (3,)"),
        ("scale of one", on(scale=jnp.ones(1)), "scale", number, "shape (1,)"),
        ("scale: text", on(scale="0.5"), "scale", number, "'0.5'"),
        ("scale: boolean", on(scale=True), "scale", number, "True"),
        ("scale: boolean array", on(scale=jnp.array(True)), "scale", number, "bool"),
        ("scale: list", on(scale=[0.5]), "scale", number, "[0.5]"),
        ("scale: complex", on(scale=1j), "scale", number, "1j"),
        ("is_causal: text", on(is_causal="False"), "is_causal", flag, "'False'"),
        ("is_causal: one", on(is_causal=1), "is_causal", flag, "1"),
        ("is_causal: None", on(is_causal=None), "is_causal", flag, "None"),
        ("is_causal: mask", on(is_causal=causal()), "is_causal", flag, "Mask"),
        ("is_causal: array", on(is_causal=jnp.ones((T, S), bool)), "is_causal", flag, "Array"),
        ("query: list", on([[1.0]]), "query", "an array", "list"),
        ("key: tuple", on(key=((1.0,),)), "key", "an array", "tuple"),
        ("key: None", on(key=None), "key", "an array", "NoneType"),
        ("query: booleans", on(Q > 0), "query", "floating-point", "bool"),
        ("query: complex", on(Q.astype(complex)), "query", "floating-point", "complex"),
        ("query: objects", on(np.ones(Q.shape, object)), "query", "floating-point", "object"),
        ("query: a random key", on(RNG_KEY), "query", "(…", "rank 0"),
        ("mask: list", on(mask=[[True]]), "mask", "a Mask or a boolean array", "list"),
        ("mask: boolean", on(mask=True), "mask", "a Mask or a boolean array", "bool"),
        ("mask: function", on(mask=causal), "mask", "a Mask or a boolean array", "function"),
        ("mask: integers", on(mask=jnp.ones((1, 1, T, S), int)), "mask", "boolean", "int32"),
        ("bias: list", on(bias=[[0.0]]), "bias", "an array", "list"),
        ("bias: number", on(bias=1.0), "bias", "an array", "float"),
        ("bias: mask", on(bias=causal()), "bias", "an array", "Mask"),
        ("bias: integers", on(bias=jnp.ones((1, 1, T, S), int)), "bias", "floating", "int32"),
    ]
    if has_value:
        factors = jnp.ones((1, 1, T, S))
        cases += [
            ("value: None", on(value=None), "value", "an array", "NoneType"),
            ("value: list", on(value=[[1.0]]), "value", "an array", "list"),
            *(
                (f"factors: {what}", on(dropout_multiplier=x), "dropout_multiplier", wanted, got)
                for what, x, wanted, got in (
                    ("rank", factors[0], "none left", "(1,"),
                    ("bool", factors > 0, "float", "bool"),
                    ("number", 0.9, "an array", "float"),
                )
            ),
        ]
    return [bad(f"{name}: {case[0]}", *case[1:]) for case in cases]


def of_more_dispatch() -> list[WrongCall]:
    def on(**given: Any) -> Callable[[], Any]:
        return lambda: attend(Q, KEY, VALUE, **given)

    by_name = attention_spec(Q, KEY, VALUE)
    return [
        bad("attend: as in jax.nn", lambda: attend(*[jnp.ones((B, 8, 3, H))] * 3), "layout",
            '"TNH" for arrays (…, T, N, H) as in jax.nn', "(2, 8, 3, 3)"),
        bad("attend: number", on(implementation=3), "implementation", "one of", "3"),
        bad(
            "attend: list", on(implementation=["reference"]), "implementation", "one of",
            "['reference']",
        ),
        bad("attend: soft cap", on(logit_softcap=-1.0), "logit_softcap", "positive", "-1.0"),
        bad(
            "attend: cannot serve",
            lambda: attend(
                Q, KEY, VALUE, implementation="jax_nn", dropout_multiplier=jnp.ones((1, 1, T, S))
            ),
            "implementation", "serves", "jax_nn",
        ),
        bad("select: text", lambda: select("reference"), "spec", "AttentionSpec", "str"),
        bad("select: arrays", lambda: select(Q), "spec", "AttentionSpec", "Array"),
        bad(
            "select: unknown wish",
            lambda: select(by_name._replace(wants=frozenset({"gradient"}))), "wants", "lse",
            "gradient",
        ),
        bad(
            "attention_spec: option",
            lambda: attention_spec(Q, KEY, VALUE, masks=None), "masks", "an option", "masks",
        ),
    ]  # fmt: skip


def of_other_parameters() -> list[WrongCall]:
    """A dict, a tuple, the other kind of parameters or another tree where parameters are meant."""
    as_dict, as_tuple = PARAMS._asdict(), tuple(PARAMS)
    separate, either = "MultiHeadParams", "MultiHeadParams or FusedMultiHeadParams"
    fused_message = "FusedMultiHeadParams"
    keep = np.ones(N, bool)
    takes_either: dict[str, Callable[[Any], Any]] = {
        "layer": lambda params: multi_head_attention(params, X),
        "project_qkv": lambda params: project_qkv(params, X),
        "project_output": lambda params: project_output(params, jnp.ones((N, T, H))),
        "layer_vjp": lambda params: multi_head_attention_vjp(params, X),
    }
    takes_separate: dict[str, Callable[[Any], Any]] = {
        "check": check_params,
        "fuse": fuse,
        "prune_heads": lambda params: prune_heads(params, keep),
        "block_norms": block_norms,
        "composition": lambda params: composition(params, PARAMS),
        "composition later": lambda params: composition(PARAMS, params),
        "repeat_kv_heads": repeat_kv_heads,
        "mean_pool_groups": lambda params: mean_pool_groups(params, 1),
        "select_from_groups": lambda params: select_from_groups(params, 1),
        "fit_groups": lambda params: fit_groups(params, 1),
        "reinitialize_groups": lambda params: reinitialize_groups(RNG_KEY, params, 1),
    }
    names = {"composition": "earlier", "composition later": "later"}
    cache = init_cache(B, K, S, H)
    return [
        *(
            bad(f"{name}: {kind}", partial(call, given), "params", either, got)
            for name, call in takes_either.items()
            for kind, given, got in (
                ("dict", as_dict, "dict"),
                ("tuple", as_tuple, "tuple"),
                ("None", None, "NoneType"),
            )
        ),
        *(
            bad(
                f"{name}: {kind}", partial(call, given), names.get(name, "params"), separate, got,
            )
            for name, call in takes_separate.items()
            for kind, given, got in (
                ("dict", as_dict, "dict"),
                ("tuple", as_tuple, "tuple"),
                ("fused", FUSED, fused_message),
            )
        ),
        bad("unfuse: dict", lambda: unfuse(FUSED._asdict()), "params", fused_message, "dict"),
        bad("unfuse: separate", lambda: unfuse(PARAMS), "params", fused_message, "MultiHeadParams"),
        bad("unfuse: None", lambda: unfuse(None), "params", fused_message, "NoneType"),
        bad(
            "cached: dict", lambda: cached_multi_head_attention(as_dict, X, cache), "params",
            either, "dict",
        ),
        bad(
            "cached: no cache", lambda: cached_multi_head_attention(PARAMS, X, {}), "cache",
            "KVCache", "dict",
        ),
        bad("layer: swapped", lambda: multi_head_attention(X, PARAMS), "params", either, "Array"),
        bad("layer: no parameters", lambda: multi_head_attention(X, X), "params", either, "Array"),
        bad(
            "layer: list for a weight", changed(w_q=[[[1.0]]]), "w_q", "an array", "list",
        ),
        bad("layer: no w_o", changed(w_o=None), "w_o", "an array", "NoneType"),
        bad("layer: list for a bias", changed(b_q=[[1.0]]), "b_q", "an array", "list"),
        bad("layer: integer weight", changed(w_k=PARAMS.w_k.astype(int)), "w_k", "float", "int32"),
    ]  # fmt: skip


def of_the_layer_by_accident() -> list[WrongCall]:
    def on(*inputs: Any, **given: Any) -> Callable[[], Any]:
        return lambda: multi_head_attention(PARAMS, *inputs, **given)

    flag, number, key = "True or False", "a number or an array of shape ()", "PRNG key"
    rates, angles = Dropout(weights=0.5), jnp.ones((T, 1))
    even = init_multi_head(RNG_KEY, D, N, num_kv_heads=K, head_dim=4)

    def turned(**given: Any) -> Callable[[], Any]:
        return lambda: multi_head_attention(even, X, **given)

    return [
        bad("layer: scale", on(X, scale=jnp.arange(5.0)), "scale", number, "shape (5,)"),
        bad("layer: is_causal", on(X, is_causal="True"), "is_causal", flag, "'True'"),
        bad("layer: is_causal 1", on(X, is_causal=1), "is_causal", flag, "1"),
        bad("layer: dropout", on(X, dropout=0.1), "dropout", "Dropout(", "0.1"),
        bad("layer: dropout dict", on(X, dropout={}), "dropout", "Dropout(", "{}"),
        bad("layer: seed", on(X, dropout=rates, rng_key=4.2), "rng_key", key, "4.2"),
        bad("layer: seed alone", on(X, rng_key=4.2), "rng_key", key, "4.2"),
        bad(
            "layer: float key", on(X, dropout=rates, rng_key=jnp.ones(2)), "rng_key", key, "float32"
        ),
        bad(
            "layer: keys", on(X, dropout=rates, rng_key=jax.random.split(RNG_KEY, 3)), "rng_key",
            key, "(3,)",
        ),
        bad("layer: no key", on(X, dropout=rates), "rng_key", key, "None"),
        bad("layer: gates list", on(X, gates=[1.0] * N), "gates", "an array", "list"),
        bad("layer: gates (1, N)", on(X, gates=jnp.ones((1, N))), "gates", "(6,)", "(1, 6)"),
        bad("layer: gates number", on(X, gates=1.0), "gates", "an array", "float"),
        bad("layer: gates booleans", on(X, gates=jnp.ones(N, bool)), "gates", "float", "bool"),
        bad("layer: list", on([[1.0] * D]), "query", "an array", "list"),
        bad("layer: key list", on(X, [[1.0] * D]), "key", "an array", "list"),
        bad("layer: no query", on(None), "query", "an array", "NoneType"),
        bad("layer: tokens", on(jnp.ones((B, T), int)), "query", "floating-point", "int32"),
        bad("layer: mask as key", on(X, causal()), "key", "an array", "Mask"),
        bad("layer: head mask", on(X, mask=jnp.ones((N, T, T), bool)), "mask", "(…, N", "(6, 5"),
        bad("layer: angles, odd", on(X, angles=angles), "x", "an even last axis", "3"),
        bad("layer: angles", turned(angles=angles), "angles", "axis -1", "1, shape"),
        bad("layer: angles list", turned(angles=[[1.0]]), "angles", "an array", "list"),
        bad(
            "layer: positions for angles", turned(angles=jnp.ones((T, 2), int)), "angles",
            "floating-point", "int32",
        ),
        bad(
            "layer: angles of many", turned(angles=jnp.ones((3, 1, T, 2))), "angles", "(2, 6",
            "(3, 1",
        ),
        bad(
            "layer: angles and a key",
            lambda: multi_head_attention(even, X, X, angles=jnp.ones((T, 2))), "angles",
            "self-attention", "a key",
        ),
        bad("layer: text", on(X, implementation=7), "implementation", "one of", "7"),
        bad("project: weight list", lambda: project_heads(X, [[1.0]]), "weight", "an array", "li"),
        bad("project: bias", lambda: project_heads(X, PARAMS.w_q, X[0]), "bias", "(N, H)", "(5,"),
        bad("project: dtype", lambda: project_heads(X, PARAMS.w_q.astype(int)), "weight", "float",
            "int32"),
        bad("project: input dtype", lambda: project_heads(X > 0, PARAMS.w_q), "x", "float", "bool"),
        bad("output: rank", lambda: project_output(PARAMS, X[0]), "heads", "(…, N, T, C)", "rank"),
        bad("output: heads", lambda: project_output(PARAMS, jnp.ones((4, T, H))), "heads",
            "6", "4,"),
        bad("output: width", lambda: project_output(PARAMS, jnp.ones((N, T, 5))), "heads",
            "3", "5,"),
        bad(
            "output: dtype", lambda: project_output(PARAMS, jnp.ones((N, T, H), int)), "heads",
            "floating", "int32",
        ),
    ]  # fmt: skip


def of_more_parameters() -> list[WrongCall]:
    def init(*sizes: Any, **more: Any) -> Callable[[], Any]:
        return lambda: init_multi_head(RNG_KEY, *sizes, **more)

    def keyed(rng_key: Any) -> Callable[[], Any]:
        return lambda: init_multi_head(rng_key, D, 2)

    def unfusing(**fields: Any) -> Callable[[], Any]:
        return lambda: unfuse(FUSED._replace(**fields))

    key = "PRNG key"
    return [
        bad("init: seed", keyed(4.2), "rng_key", key, "4.2"),
        bad("init: None for a key", keyed(None), "rng_key", key, "None"),
        bad("init: keys", keyed(jax.random.split(RNG_KEY)), "rng_key", key, "(2,)"),
        bad("init: float key", keyed(jnp.ones(2)), "rng_key", key, "float32"),
        bad("init: NumPy's generator", keyed(np.random.default_rng(0)), "rng_key", key, "Gener"),
        bad("init: boolean", init(D, True), "num_heads", "integer", "True"),
        bad("init: text", init("64", 2), "d_model", "integer", "'64'"),
        bad("init: integers", init(D, 2, dtype=jnp.int32), "dtype", "floating-point", "int32"),
        bad("init: no dtype", init(D, 2, dtype="wide"), "dtype", "floating-point", "'wide'"),
        bad("init: use_bias", init(D, 2, use_bias="no"), "use_bias", "True or False", "'no'"),
        bad("init: initializer", init(D, 2, initializer="xavier"), "initializer", "function",
            "'xavier'"),
        bad("init: its shape", init(D, 2, initializer=lambda *_: jnp.ones(3)), "initializer",
            "shape (10, 2, 5)", "(3,)"),
        bad("identity: boolean", lambda: identity_params(6, True), "num_heads", "divisor", "True"),
        bad("identity: width", lambda: identity_params(6.0, 2), "d_model", "integer", "6.0"),
        bad("identity: no width", lambda: identity_params(0, 1), "d_model", "positive", "0"),
        bad("identity: integers", lambda: identity_params(6, 2, int), "dtype", "floating", "int"),
        bad("unfuse: dtype", unfusing(w_o=FUSED.w_o.astype(jnp.float16)), "w_o", "float32", "16"),
        bad("unfuse: integers", unfusing(w_qkv=FUSED.w_qkv.astype(int)), "w_qkv", "float", "int32"),
        bad("unfuse: bias list", unfusing(b_qkv=[1.0]), "b_qkv", "an array", "list"),
        bad("unfuse: output bias", unfusing(b_o=jnp.ones(3)), "b_o", "(10,)", "(3,)"),
        bad("unfuse: no weight", unfusing(w_qkv=None), "w_qkv", "an array", "NoneType"),
        bad("unfuse: width", unfusing(w_o=jnp.ones((N, 4, D))), "w_o", "(6, 3, any)", "(6, 4, 10)"),
        bad("xavier: seed", lambda: xavier_uniform(4.2, 3, 3, (3, 3), jnp.float32), "rng_key", key,
            "4.2"),
        bad("xavier: fans", lambda: xavier_uniform(RNG_KEY, 0, 0, (3, 3), jnp.float32),
            "fan_in, fan_out",
            "positive", "0, 0"),
        bad("xavier: integers", lambda: xavier_uniform(RNG_KEY, 3, 3, (3, 3), jnp.int32), "dtype",
            "floating", "int32"),
        bad("normal: seed", lambda: normal(4.2, 3, 3, (3, 3), jnp.float32), "rng_key", key, "4.2"),
        bad("normal: integers", lambda: normal(RNG_KEY, 3, 3, (3, 3), jnp.int32), "dtype",
            "floating", "int32"),
    ]  # fmt: skip


def of_gradients() -> list[WrongCall]:
    weights, d_output = jnp.ones((B, N, T, S)), jnp.ones((B, N, T, C))
    _, pull = multi_head_attention_vjp(PARAMS, X)
    wide_heads = jnp.ones((N, T, 5))

    def whole(**given: Any) -> Callable[[], Any]:
        arguments = {
            "query": Q, "key": KEY, "value": VALUE, "weights": weights, "output": d_output,
            "d_output": d_output,
        }  # fmt: skip
        return lambda: attention_vjp(**{**arguments, **given})

    same = "the shape of"
    return [
        bad("jacobian: list", lambda: softmax_jacobian([0.5, 0.5]), "weights", "an array", "list"),
        bad("jacobian: scalar", lambda: softmax_jacobian(jnp.ones(())), "weights", "rank 1", "0"),
        bad("jacobian: integers", lambda: softmax_jacobian(jnp.ones(3, int)), "weights", "float",
            "int32"),
        bad("softmax_vjp: shape", lambda: softmax_vjp(X, X[0]), "d_weights", same, "(5, 10)"),
        bad("softmax_vjp: inner", lambda: softmax_vjp(X, X, X), "inner", "(2, 5, 1)", "(2, 5, 10)"),
        bad("softmax_vjp: list", lambda: softmax_vjp([1.0], X), "weights", "an array", "list"),
        bad("row_products: shape", lambda: row_products(X, X[..., :1]), "d_x", same, "(2, 5, 1)"),
        bad("row_products: None", lambda: row_products(X, None), "d_x", "an array", "NoneType"),
        bad("values_vjp: value", lambda: values_vjp(weights, VALUE[:, :, 1:], d_output), "value",
            "axis -2", "6, shape"),
        bad("values_vjp: output", lambda: values_vjp(weights, VALUE, d_output[..., 1:]), "d_output",
            "(2, 6, 5, 11)", "(2, 6, 5, 10)"),
        bad("values_vjp: list", lambda: values_vjp([[1.0]], VALUE, d_output), "weights", "an array",
            "list"),
        bad("scores_vjp: scores", lambda: scores_vjp(Q, KEY, weights[..., 1:], 1.0), "d_scores",
            "(2, 6, 5, 7)", "(2, 6, 5, 6)"),
        bad("scores_vjp: scale", lambda: scores_vjp(Q, KEY, weights, jnp.ones(3)), "scale",
            "a number", "(3,)"),
        bad("scores_vjp: key", lambda: scores_vjp(Q, KEY[..., 1:], weights, 1.0), "key", "axis -1",
            "2, shape"),
        bad("broadcast_vjp: rank", lambda: broadcast_vjp(X, (2, 5)), "shape", "rank 3", "(2, 5)"),
        bad("broadcast_vjp: axis", lambda: broadcast_vjp(X, (2, 3, 1)), "shape", "equal or 1",
            "(2, 3, 1)"),
        bad("attention_vjp: weights", whole(weights=weights[..., 1:]), "weights", "(2, 6, 5, 7)",
            "(2, 6, 5, 6)"),
        bad("attention_vjp: output", whole(output=Q), "output", "(2, 6, 5, 11)", "(2, 6, 5, 3)"),
        bad("attention_vjp: gradient", whole(d_output=Q), "d_output", "(2, 6, 5, 11)",
            "(2, 6, 5, 3)"),
        bad("attention_vjp: lse", whole(d_lse=Q), "d_lse", "(2, 6, 5)", "(2, 6, 5, 3)"),
        bad("attention_vjp: empty", whole(empty=Q > 0), "empty", "(2, 6, 5)", "(2, 6, 5, 3)"),
        bad("attention_vjp: empty, float", whole(empty=Q[..., 0]), "empty", "booleans", "float32"),
        bad("attention_vjp: scale", whole(scale="1"), "scale", "a number", "'1'"),
        bad("attention_vjp: bias", whole(bias=Q), "bias", "(2, 6, 5, 7)", "(2, 6, 5, 3)"),
        bad("attention_vjp: heads", whole(key=KEY[:, :1]), "value", "axis -3", "2, shape"),
        bad("forward: arrays", lambda: forward(Q), "operands", "prepare", "Array"),
        bad("forward: dict", lambda: forward({"query": Q}), "operands", "prepare", "dict"),
        bad("backward: arrays", lambda: backward(Q, d_output), "saved", "forward", "Array"),
        bad(
            "backward: shape",
            lambda: backward(forward(prepare(Q, KEY, VALUE))[2], Q), "d_output",
            "(2, 6, 5, 11)", "(2, 6, 5, 3)",
        ),
        bad("heads_vjp: gradient", lambda: project_heads_vjp(X[0], PARAMS.w_q, wide_heads),
            "d_heads", "(6, 5, 3)", "(6, 5, 5)"),
        bad("heads_vjp: weight", lambda: project_heads_vjp(X[0], X[0], wide_heads), "weight",
            "(D, N, H)", "(5, 10)"),
        bad("heads_vjp: width", lambda: project_heads_vjp(X[0, :, 1:], PARAMS.w_q, Q[0]), "weight",
            "axis 0", "10, shape"),
        bad("combine_vjp: heads", lambda: combine_outputs_vjp(wide_heads, PARAMS.w_o, X[0]),
            "heads", "(…, N, T, C)", "(6, 5, 5)"),
        bad("combine_vjp: gradient", lambda: combine_outputs_vjp(Q[0], PARAMS.w_o, Z[0]),
            "d_output", "(5, 10)", "(7, 10)"),
        bad("combine_vjp: weight", lambda: combine_outputs_vjp(Q[0], X[0], X[0]), "w_o",
            "(N, C, D)", "(5, 10)"),
        bad("gates_vjp: gates", lambda: gates_vjp(Q, jnp.ones(K), Q), "gates", "(6,)", "(2,)"),
        bad("gates_vjp: gradient", lambda: gates_vjp(Q, jnp.ones(N), Q[:1]), "d_gated", same,
            "(1, 6, 5, 3)"),
        bad("gates_vjp: rank", lambda: gates_vjp(X[0], jnp.ones(N), X[0]), "heads", "(…, N, T, C)",
            "rank 2"),
        bad("rotate_vjp: list", lambda: rotate_vjp([[1.0]], Q), "angles", "an array", "list"),
        bad("rotate_vjp: width", lambda: rotate_vjp(jnp.ones((T, 1)), X), "angles", "axis -1",
            "1, shape"),
        bad("layer_vjp: name", lambda: multi_head_attention_vjp(PARAMS, X, implementation="fast"),
            "implementation", "manual, recompute", "fast"),
        bad("layer_vjp: scale", lambda: multi_head_attention_vjp(PARAMS, X, scale=jnp.ones(3)),
            "scale", "a number", "(3,)"),
        bad("layer_vjp: dropout", lambda: multi_head_attention_vjp(PARAMS, X, dropout=0.1),
            "dropout", "Dropout(", "0.1"),
        bad("layer_vjp: seed", lambda: multi_head_attention_vjp(PARAMS, X, rng_key=1.5), "rng_key",
            "PRNG key", "1.5"),
        bad("layer_vjp: gates", lambda: multi_head_attention_vjp(PARAMS, X, gates=jnp.ones(K)),
            "gates", "(6,)", "(2,)"),
        bad("pull: shape", lambda: pull(X[:1]), "d_output", "(2, 5, 10)", "(1, 5, 10)"),
        bad("pull: list", lambda: pull([1.0]), "d_output", "an array", "list"),
        bad("pull: scalar", lambda: pull(jnp.ones(())), "d_output", "(2, 5, 10)", "()"),
    ]  # fmt: skip


def of_flash() -> list[WrongCall]:
    x = jnp.ones((2, 8, 4))

    def on(*arrays: Any, **given: Any) -> Callable[[], Any]:
        arrays = arrays or (x, x, x)
        return lambda: flash_attention(*arrays, **{"block": 4, **given})

    return [
        bad("flash: rank", on(x[0], x[0], x[0]), "query", "(N, T, H), that is rank 3", "rank 2"),
        bad("flash: batch", on(x[None], x[None], x[None]), "query", "rank 3", "rank 4"),
        bad("flash: groups", on(x, x[:1], x[:1]), "key", "2 heads", "(1, 8, 4)"),
        bad("flash: length", on(x[:, :6], x, x), "query", "multiple of block = 4", "6"),
        bad("flash: keys", on(x, x[:, :6], x[:, :6]), "key", "multiple of block = 4", "6"),
        bad("flash: no block", on(block=0), "block", "positive integer", "0"),
        bad("flash: negative block", on(block=-4), "block", "positive integer", "-4"),
        bad("flash: float block", on(block=4.0), "block", "positive integer", "4.0"),
        bad("flash: is_causal", on(is_causal="False"), "is_causal", "True or False", "'False'"),
        bad("flash: interpret", on(interpret="no"), "interpret", "True or False", "'no'"),
        bad("flash: list", on([[1.0]], x, x), "query", "an array", "list"),
        bad("flash: value", on(x, x, x[:, :4]), "value", "axis -2", "4, shape"),
        bad("flash: integers", on(x.astype(int), x, x), "query", "floating", "int32"),
    ]


def of_rope_and_layers() -> list[WrongCall]:
    """Others of the functions around attention."""
    angles, one = jnp.ones((T, D // 2)), jnp.ones(D)
    return [
        bad("angles: float", lambda: rotary_angles(one, 4), "positions", "integers", "float32"),
        bad("angles: list", lambda: rotary_angles([0, 1], 4), "positions", "integers", "list"),
        bad("angles: number", lambda: rotary_angles(3, 4), "positions", "integers", "int"),
        bad("angles: odd", lambda: rotary_angles(jnp.arange(3), 5), "head_dim", "even", "5"),
        bad("angles: zero", lambda: rotary_angles(jnp.arange(3), 0), "head_dim", "positive", "0"),
        bad("angles: float width", lambda: rotary_angles(jnp.arange(3), 4.0), "head_dim", "integer",
            "4.0"),
        bad("angles: base", lambda: rotary_angles(jnp.arange(3), 4, 0.0), "theta", "positive", "0"),
        bad("angles: text", lambda: rotary_angles(jnp.arange(3), 4, "big"), "theta", "positive",
            "'big'"),
        bad("rotate: list", lambda: rotate([[1.0]], angles), "x", "an array", "list"),
        bad("rotate: a vector", lambda: rotate(one, angles), "x", "rank 2", "rank 1"),
        bad("rotate: integers", lambda: rotate(X.astype(int), angles), "x", "floating", "int32"),
        bad("rotate: odd", lambda: rotate(X[..., :9], angles), "x", "even", "9"),
        bad("rotate: length", lambda: rotate(Z, angles), "angles", "axis -2", "5, shape"),
        bad("rotate: width", lambda: rotate(X, angles[:, :3]), "angles", "axis -1", "3, shape"),
        bad("rotate: angles", lambda: rotate(X, None), "angles", "an array", "NoneType"),
        bad("rotate: positions", lambda: rotate(X, jnp.ones((T, 5), int)), "angles", "floating",
            "int32"),
        bad("rotate: batch", lambda: rotate(X, jnp.ones((3, T, 5))), "angles",
            "leading axes (2,)", "(3, 5"),
        bad("rotate: rank", lambda: rotate(X, jnp.ones((1, 1, 1, T, 5))), "angles",
            "leading axes (2,)", "(1, 1"),
        bad("rms_norm: list", lambda: rms_norm([1.0], one), "x", "an array", "list"),
        bad("rms_norm: weight", lambda: rms_norm(X, one[1:]), "weight", "axis 0", "9, shape"),
        bad("rms_norm: epsilon", lambda: rms_norm(X, one, -1.0), "epsilon", "non-neg", "-1.0"),
        bad("rms_norm: weight list", lambda: rms_norm(X, [1.0] * D), "weight", "an array", "list"),
        bad("rms_norm: dtype", lambda: rms_norm(X, jnp.ones(D, int)), "weight", "float", "int32"),
        bad("rms_norm: text", lambda: rms_norm(X, one, "small"), "epsilon", "number", "'small'"),
        bad("norm: text", lambda: layer_norm(X, one, one, "small"), "epsilon", "number", "'small'"),
        bad("swiglu: list", lambda: swiglu([[1.0]], X[0], X[0], X[0]), "x", "an array", "list"),
        bad("swiglu: gate", lambda: swiglu(X, X[0], X[0], X[0]), "w_gate", "axis 0", "5, shape"),
        bad("swiglu: rank", lambda: swiglu(X, one, one, one), "w_gate", "rank 2", "(10,)"),
        bad("swiglu: weight list", lambda: swiglu(X, [[1.0]], X[0], X[0]), "w_gate", "an array",
            "list"),
    ]  # fmt: skip


def of_dropout() -> list[WrongCall]:
    draw = (RNG_KEY, 0.5, (3,))
    return [
        bad("dropout: rate", lambda: Dropout(weights=1.0), "dropout.weights", "[0, 1)", "1.0"),
        bad("dropout: negative", lambda: Dropout(heads=-0.1), "dropout.heads", "[0, 1)", "-0.1"),
        bad("dropout: text", lambda: Dropout(output="0.1"), "dropout.output", "[0, 1)", "'0.1'"),
        bad("dropout: boolean", lambda: Dropout(weights=False), "dropout.weights", "[0, 1)",
            "False"),
        bad("dropout: None", lambda: Dropout(weights=None), "dropout.weights", "[0, 1)", "None"),
        bad("dropout: array", lambda: Dropout(weights=jnp.ones(2) / 2), "dropout.weights", "[0, 1)",
            "Array"),
        bad("dropout: list", lambda: dropout([1.0], 0.5, RNG_KEY), "x", "an array", "list"),
        bad("dropout: integers", lambda: dropout(jnp.arange(3), 0.5, RNG_KEY), "x", "floating",
            "int32"),
        bad("dropout: of one", lambda: dropout(X, 1.0, RNG_KEY), "rate", "[0, 1)", "1.0"),
        bad("dropout: no key", lambda: dropout(X, 0.5), "rng_key", "PRNG key", "None"),
        bad("dropout: seed", lambda: dropout(X, 0.5, 4.2), "rng_key", "PRNG key", "4.2"),
        bad("dropout: swapped", lambda: dropout(X, RNG_KEY, 0.5), "rate", "[0, 1)", "key"),
        bad("factors: seed", lambda: dropout_factors(4.2, *draw[1:]), "rng_key", "PRNG key", "4.2"),
        bad("factors: rate", lambda: dropout_factors(RNG_KEY, 1.5, (3,)), "rate", "[0, 1)", "1.5"),
        bad("factors: integers", lambda: dropout_factors(*draw, jnp.int32), "dtype", "floating",
            "int32"),
        bad("draw: rate", lambda: draw_factors(0.5, RNG_KEY, (2, 5, 7), 3, 4), "dropout",
            "Dropout(", "0.5"),
    ]  # fmt: skip


def of_cache() -> list[WrongCall]:
    cache = init_cache(B, K, S, H)
    new = jnp.ones((B, K, 2, H))
    return [
        bad("cache: zero", lambda: init_cache(0, K, S, H), "batch", "positive", "0"),
        bad("cache: float", lambda: init_cache(B, K, 8.0, H), "capacity", "integer", "8.0"),
        bad("cache: boolean", lambda: init_cache(True, K, S, H), "batch", "integer", "True"),
        bad("cache: window", lambda: init_cache(B, K, 3, H, window=4), "capacity", "4 slots", "3"),
        bad("cache: integers", lambda: init_cache(B, K, S, H, dtype=int), "dtype", "floating",
            "int"),
        bad("append: rank", lambda: append(cache, new[0], new), "key", "(2, 2, T, 3)", "(2, 2, 3)"),
        bad("append: dtype", lambda: append(cache, new, new.astype(int)), "value", "float",
            "int32"),
        bad("append: list", lambda: append(cache, [1.0], new), "key", "an array", "list"),
        bad("append: no cache", lambda: append({}, new, new), "cache", "KVCache", "dict"),
        bad("append: counts", lambda: append(cache, new, new, jnp.ones(2)), "counts", "integers",
            "float32"),
        bad("append: too many", lambda: append(cache, jnp.ones((B, K, 9, H)),
            jnp.ones((B, K, 9, H))), "cache", "at most 7", "[9, 9]"),
        bad("append: negative", lambda: append(cache, new, new, jnp.array([-1, 1])), "counts",
            "0 to 2", "[-1, 1]"),
        bad("append: more than came", lambda: append(cache, new, new, jnp.array([3, 1])), "counts",
            "0 to 2", "[3, 1]"),
        bad("attend_cached: rank", lambda: attend_cached(Q[0], cache), "query", "(B, N, T, H)",
            "(6, 5, 3)"),
        bad("attend_cached: list", lambda: attend_cached([[1.0]], cache), "query", "an array",
            "list"),
        bad("cache_mask: float", lambda: cache_mask(cache, 2.0), "num_new", "integer", "2.0"),
        bad("cache_mask: negative", lambda: cache_mask(cache, -1), "num_new", "0 or more", "-1"),
    ]  # fmt: skip


def of_groups() -> list[WrongCall]:
    sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
    latent = init_latent(RNG_KEY, 8, 5, **sizes)
    x, angles = jnp.ones((7, 8)), jnp.zeros((7, 1))
    return [
        bad("kv index: indivisible", lambda: kv_head_index(6, 4), "num_kv_heads", "divisor", "4"),
        bad("kv index: zero", lambda: kv_head_index(6, 0), "num_kv_heads", "positive", "0"),
        bad("kv index: float", lambda: kv_head_index(6, 2.0), "num_kv_heads", "divisor", "2.0"),
        bad("kv index: all float", lambda: kv_head_index(6.0, 2), "num_heads", "integer", "6.0"),
        bad("kv index: boolean", lambda: kv_head_index(6, True), "num_kv_heads", "divisor", "True"),
        bad("pool: more", lambda: mean_pool_groups(PARAMS, 3), "num_kv_heads", "divisor", "3"),
        bad("select_from: member", lambda: select_from_groups(PARAMS, 1, member=2), "member",
            "0 to 1", "2"),
        bad("select_from: text", lambda: select_from_groups(PARAMS, 1, member="0"), "member",
            "0 to 1", "'0'"),
        bad("fit: more", lambda: fit_groups(PARAMS, 3), "num_kv_heads", "divisor", "3"),
        bad("reinitialize: seed", lambda: reinitialize_groups(4.2, PARAMS, 1), "rng_key",
            "PRNG key", "4.2"),
        bad("latent: seed", lambda: init_latent(4.2, 8, 5, **sizes), "rng_key", "PRNG key", "4.2"),
        bad("latent: zero", lambda: init_latent(RNG_KEY, 8, 0, **sizes), "num_heads", "positive",
            "0"),
        bad("latent: odd", lambda: init_latent(RNG_KEY, 8, 5, **{**sizes, "rotary_dim": 3}),
            "rotary_dim", "even", "3"),
        bad("compress: rank", lambda: compress(latent, x[0], angles), "x", "(…, T, D)", "rank 1"),
        bad("compress: width", lambda: compress(latent, x[:, 1:], angles), "x", "axis -1", "7"),
        bad("compress: dict", lambda: compress(latent._asdict(), x, angles), "params",
            "LatentParams", "dict"),
        bad("compress: other", lambda: compress(PARAMS, x, angles), "params", "LatentParams",
            "MultiHeadParams"),
        bad("expanded: latent", lambda: expanded_attention(latent, x, x, angles), "latent",
            "compress", "Array"),
    ]  # fmt: skip


def of_specialization() -> list[WrongCall]:
    seen = jnp.ones((1, 4, 4), bool)
    ids, weights = jnp.arange(4)[None], jnp.ones((1, 2, 4, 4)) / 4
    outputs, w_o, stream = jnp.ones((1, 2, 3, 4)), jnp.ones((2, 4, 5)), jnp.ones((1, 3, 5))
    sums = measures.MeasureSums(jnp.ones((2, 1, 1)), jnp.ones(2), jnp.ones(2))
    points, flat = np.zeros((3, 3)), jnp.ones((4, 4), bool)

    def of_visible(call: Callable[[Any], Any], name: str) -> list[WrongCall]:
        return [
            bad(f"{name}: visible rank", partial(call, flat), "visible", "(B, T, S)", "(4, 4)"),
            bad(f"{name}: visible float", partial(call, seen * 1.0), "visible", "bool", "float32"),
            bad(f"{name}: visible list", partial(call, [[True]]), "visible", "bool", "list"),
            bad(f"{name}: visible mask", partial(call, causal()), "visible", "bool", "Mask"),
        ]

    def targeted(target: Any) -> Callable[[], Any]:
        return lambda: patterns.on_target(seen, target)

    return [
        *of_visible(patterns.distance, "distance"),
        *of_visible(patterns.offsets, "offsets"),
        *of_visible(patterns.uniform_weights, "uniform_weights"),
        *of_visible(patterns.on_first_token, "on_first_token"),
        *of_visible(lambda v: patterns.at_offset(v, -1), "at_offset"),
        *of_visible(lambda v: patterns.in_window(v, 1), "in_window"),
        *of_visible(lambda v: patterns.on_keys(v, seen[:, 0]), "on_keys"),
        *of_visible(lambda v: patterns.on_duplicate_token(v, ids), "on_duplicate_token"),
        *of_visible(lambda v: patterns.normalized_entropy(weights, v), "normalized_entropy"),
        *of_visible(lambda v: similarity.jensen_shannon_sums(weights, v), "jensen_shannon_sums"),
        *of_visible(lambda v: measures.text_patterns(v, ids), "text_patterns"),
        *of_visible(lambda v: measures.measure_heads([weights], v, {}), "measure_heads"),
        bad("on_target: float", targeted(seen * 1.0), "target", "bool", "float32"),
        bad("on_target: rank", targeted(flat), "target", "(B, T, S)", "(4, 4)"),
        bad("on_target: axis", targeted(jnp.ones((1, 3, 4), bool)), "target", "(1, 4, 4)",
            "(1, 3, 4)"),
        bad("visible_pairs: array", lambda: patterns.visible_pairs(flat, 1, 4), "mask", "Mask",
            "Array"),
        bad("visible_pairs: None", lambda: patterns.visible_pairs(None, 1, 4), "mask", "Mask",
            "NoneType"),
        bad("visible_pairs: float", lambda: patterns.visible_pairs(causal(), 1, 4.0),
            "query_length", "integer", "4.0"),
        bad("visible_pairs: batch", lambda: patterns.visible_pairs(causal(), 1.0, 4), "batch",
            "integer", "1.0"),
        bad("visible_pairs: by head", lambda: patterns.visible_pairs(
            array_mask(jnp.ones((1, 2, 4, 4), bool)), 1, 4), "mask", "one for all heads", "(1, 2"),
        bad("at_offset: float", lambda: patterns.at_offset(seen, -1.5), "offset", "integer",
            "-1.5"),
        bad("at_offset: text", lambda: patterns.at_offset(seen, "previous"), "offset", "integer",
            "'previous'"),
        bad("in_window: negative", lambda: patterns.in_window(seen, -1), "width", "0 or more",
            "-1"),
        bad("in_window: text", lambda: patterns.in_window(seen, "4"), "width", "0 or more", "'4'"),
        bad("on_keys: float", lambda: patterns.on_keys(seen, jnp.ones((1, 4))), "keys", "bool",
            "float32"),
        bad("on_keys: list", lambda: patterns.on_keys(seen, [[True]]), "keys", "bool", "list"),
        bad("on_keys: axes", lambda: patterns.on_keys(seen, flat[0]), "keys", "(B, S)", "(4,)"),
        bad("duplicates: float", lambda: patterns.on_duplicate_token(seen, ids * 1.0), "token_ids",
            "integers", "float32"),
        bad("duplicates: axes", lambda: patterns.on_duplicate_token(seen, ids[0]), "token_ids",
            "(B, T)", "(4,)"),
        bad("induction: axes", lambda: patterns.on_induction_target(seen, ids[:, 1:]), "token_ids",
            "(B, T)", "(1, 3)"),
        bad("entropy: axes", lambda: patterns.normalized_entropy(weights[0], seen), "weights",
            "(B, N, T, S)", "(2, 4, 4)"),
        bad("mean_score: no pattern", lambda: patterns.mean_score(weights, seen), "pattern",
            "Pattern", "Array"),
        bad("mean_score: integers", lambda: patterns.mean_score(seen[None],
            patterns.distance(seen)), "weights", "floating", "bool"),
        bad("measure_heads: array", lambda: measures.measure_heads(weights[0], seen, {}), "weights",
            "for each layer", "(2, 4, 4)"),
        bad("measure_heads: none", lambda: measures.measure_heads([], seen, {}), "weights",
            "for each layer", "[]"),
        bad("mean: dict", lambda: measures.mean({"x": sums}), "sums", "MeasureSums", "dict"),
        bad("above_chance: dict", lambda: measures.above_chance({"x": sums}), "sums", "MeasureSums",
            "dict"),
        bad("baseline: dict", lambda: measures.baseline_mean({"x": sums}), "sums", "MeasureSums",
            "dict"),
        bad("interval: level", lambda: measures.bootstrap_interval(sums, RNG_KEY, level=95.0),
            "level", "between 0 and 1", "95.0"),
        bad("interval: seed", lambda: measures.bootstrap_interval(sums, 4.2), "rng_key",
            "PRNG key", "4.2"),
        bad("samples: draws", lambda: measures.bootstrap_samples(sums, RNG_KEY, 0), "draws",
            "positive", "0"),
        bad("samples: dict", lambda: measures.bootstrap_samples({"x": sums}, RNG_KEY), "sums",
            "MeasureSums", "dict"),
        bad("table: empty", lambda: measures.head_table({}), "sums", "one measure", "none"),
        bad("table: texts", lambda: measures.head_table({"x": sums}), "sums", "(L, N)",
            "(2, 1, 1)"),
        bad("table: one measure", lambda: measures.head_table(sums), "sums", "by name",
            "MeasureSums"),
        bad("composition: gain", lambda: composition(PARAMS, PARAMS, jnp.ones(3)), "gain",
            "(10,)", "(3,)"),
        bad("composition: gain list", lambda: composition(PARAMS, PARAMS, [1.0]), "gain",
            "an array", "list"),
        bad("ratios: heads", lambda: contribution.residual_norm_ratios(outputs[:, :1], w_o, stream),
            "head_outputs", "(2, 4)", "(1, 1, 3, 4)"),
        bad("ratios: stream", lambda: contribution.residual_norm_ratios(outputs, w_o, stream[0]),
            "residual", "(1, 3, 5)", "(3, 5)"),
        bad("ratios: list", lambda: contribution.residual_norm_ratios([1.0], w_o, stream),
            "head_outputs", "an array", "list"),
        bad("attribution: direction", lambda: contribution.direct_logit_attribution(outputs, w_o,
            stream[:, :2]), "directions", "(1, 3, 5)", "(1, 2, 5)"),
        bad("attribution: weight", lambda: contribution.direct_logit_attribution(outputs, stream[0],
            stream), "w_o", "(N, C, D)", "(3, 5)"),
        bad("directions: readout", lambda: contribution.logit_directions(stream, jnp.ones(5),
            stream[0], 0.0, centered=True), "readout", "(1, 3, 5)", "(3, 5)"),
        bad("directions: gain", lambda: contribution.logit_directions(stream, jnp.ones(3), stream,
            0.0, centered=True), "gain", "(5,)", "(3,)"),
        bad("directions: centered", lambda: contribution.logit_directions(stream, jnp.ones(5),
            stream, 0.0, centered="no"), "centered", "True or False", "'no'"),
        bad("directions: epsilon", lambda: contribution.logit_directions(stream, jnp.ones(5),
            stream, -1.0, centered=True), "epsilon", "non-negative", "-1.0"),
        bad("uniform: heads", lambda: contribution.uniform_outputs(outputs, jnp.ones((1, 3, 3),
            bool), 3), "num_heads", "multiple of 2", "3"),
        bad("uniform: keys", lambda: contribution.uniform_outputs(outputs, seen, 2), "value",
            "axis 2", "3, shape"),
        bad("cluster: vector", lambda: similarity.cluster(points[0], 1), "distances", "(M, M)",
            "(3,)"),
        bad("cluster: number", lambda: similarity.cluster(points, 4), "num_clusters", "1 to 3",
            "4"),
        bad("cluster: float", lambda: similarity.cluster(points, 1.5), "num_clusters", "integer",
            "1.5"),
        bad("cluster: text", lambda: similarity.cluster("near", 1), "distances", "(M, M)", "near"),
        bad("silhouette: labels", lambda: similarity.silhouette(points, np.zeros(2)), "labels",
            "(3,)", "(2,)"),
        bad("silhouette: one", lambda: similarity.silhouette(points, np.zeros(3)), "labels",
            "two groups", "1"),
        bad("wilson: more", lambda: intervals.wilson_interval(3, 2), "successes", "0 to 2", "3"),
        bad("wilson: share", lambda: intervals.wilson_interval(0.5, 10), "successes", "integer",
            "0.5"),
        bad("student: one", lambda: intervals.mean_interval([1.0]), "values", "two samples",
            "(1,)"),
        bad("student: percent", lambda: intervals.mean_interval([1.0, 2.0], 95), "confidence",
            "between 0 and 1", "95"),
        bad("student: text", lambda: intervals.mean_interval("12"), "values", "two samples", "()"),
        bad("bootstrap: seed", lambda: intervals.bootstrap_interval([1.0], 4.2), "rng",
            "Generator", "float"),
        bad("bootstrap: draws", lambda: intervals.bootstrap_interval([1.0],
            np.random.default_rng(0), draws=0), "draws", "positive", "0"),
        bad("words: text", lambda: words.join_words("one two"), "words", "a list", "'one two'"),
        bad("words: owner", lambda: words.word_weights(np.eye(3), np.zeros(2, int)), "weights",
            "T = 2", "(3, 3)"),
        bad("words: list", lambda: words.word_weights(np.eye(2), [0, 0]), "owner", "integers",
            "list"),
        bad("words: special", lambda: words.word_weights(np.eye(1), np.array([-1])), "owner",
            "one word", "-1"),
        bad("words: first", lambda: words.most_attended(np.eye(3), 0, is_causal=True), "word",
            "another", "0"),
        bad("words: no number", lambda: words.most_attended(np.eye(3), "a", is_causal=False),
            "word", "another", "'a'"),
        bad("repeated: period", lambda: synthetic.repeated_tokens(RNG_KEY, 1, 9, jnp.arange(4)),
            "period", "1 to the 4", "9"),
        bad("repeated: float", lambda: synthetic.repeated_tokens(RNG_KEY, 1, 2.0, jnp.arange(4)),
            "period", "1 to", "2.0"),
        bad("repeated: seed", lambda: synthetic.repeated_tokens(4.2, 1, 2, jnp.arange(4)),
            "rng_key", "PRNG key", "4.2"),
        bad("repeated: size", lambda: synthetic.repeated_tokens(RNG_KEY, 1, 2, 50257), "vocabulary",
            "integers", "int"),
        bad("repeated: batch", lambda: synthetic.repeated_tokens(RNG_KEY, 0, 2, jnp.arange(4)),
            "batch", "positive", "0"),
        bad("copied: period", lambda: synthetic.copied_positions(ids, 0), "period", "1 to", "0"),
        bad("copied: too long", lambda: synthetic.copied_positions(ids, 9), "period", "1 to", "9"),
        bad("probes: seed", lambda: synthetic.probe_sequences(4.2, synthetic.ProbeTask(), 2),
            "rng_key", "PRNG key", "4.2"),
        bad("probes: task", lambda: synthetic.probe_sequences(RNG_KEY, {}, 2), "task", "ProbeTask",
            "dict"),
        bad("probes: colors", lambda: synthetic.probe_sequences(RNG_KEY, synthetic.ProbeTask(
            colors=2), 2), "task", "10 colors", "colors=2"),
    ]  # fmt: skip


def of_pruning() -> list[WrongCall]:
    keep, scores = np.ones(N, bool), np.array([[0.3, 0.1], [0.2, 0.9]])
    model = TinyParams(None, None, (TinyLayer(None, PARAMS),) * 2, None, None)
    gates = jnp.ones((2, N))

    def loss(params: Any, gates: Any, example: Any) -> Any:
        return jnp.sum(params * gates) * example

    def scored(call: Callable[..., Any], name: str) -> list[WrongCall]:
        return [
            bad(f"{name}: gates", partial(call, loss, gates, [1.0], 1.0), "gates", "an array",
                "list"),
            bad(f"{name}: integers", partial(call, loss, gates, jnp.ones((2, N), int), 1.0),
                "gates", "floating", "int32"),
            bad(f"{name}: loss", partial(call, 1.0, gates, gates, 1.0), "loss", "a function",
                "1.0"),
            bad(f"{name}: its shape", partial(call, lambda p, g, x: g, gates, gates, 1.0), "loss",
                "a scalar", "(2, 6)"),
        ]  # fmt: skip

    alpha = "log_alpha"
    return [
        bad("prune_heads: floats", lambda: prune_heads(PARAMS, jnp.ones(N)), "keep", "bool",
            "float32"),
        bad("prune_heads: list", lambda: prune_heads(PARAMS, [True] * N), "keep", "bool", "list"),
        bad("prune_heads: numbers", lambda: prune_heads(PARAMS, np.array([0, 1])), "keep", "bool",
            "int64"),
        bad("prune_heads: axes", lambda: prune_heads(PARAMS, keep[1:]), "keep", "(6,)", "(5,)"),
        bad("prune_heads: uneven", lambda: prune_heads(PARAMS, keep, uneven="drop"), "uneven",
            "raise, repeat, pad", "'drop'"),
        bad("prune_heads: groups", lambda: prune_heads(PARAMS, np.arange(N) > 0), "keep",
            "equally many", "[2, 3]"),
        bad("prune_heads: inside jit", lambda: jax.jit(partial(prune_heads, PARAMS))(keep), "keep",
            "outside jax.jit", "traced"),
        bad("prune_model: rows", lambda: prune_model(model, keep), "keep", "2 layers", "(6,)"),
        bad("prune_model: layer", lambda: prune_model(PARAMS, keep[None]), "params", "layers",
            "MultiHeadParams"),
        bad("prune_model: list", lambda: prune_model(model, [[True] * N] * 2), "keep", "bool",
            "list"),
        bad("fold_gates: rows", lambda: fold_gates(model, gates[:1]), "gates", "2 layers",
            "(1, 6)"),
        bad("fold_gates: heads", lambda: fold_gates(model, gates[:, :1]), "gates", "(2, 6)",
            "(2, 1)"),
        bad("fold_gates: list", lambda: fold_gates(model, [[1.0]] * 2), "gates", "an array",
            "list"),
        bad("fold_gates: layer", lambda: fold_gates(PARAMS, gates), "params", "layers",
            "MultiHeadParams"),
        bad("mean_ablation: means", lambda: mean_ablation(model, gates, gates), "head_means",
            "(L, N, C)", "(2, 6)"),
        bad("mean_ablation: width", lambda: mean_ablation(model, gates, jnp.ones((2, N, 5))),
            "head_means", "C = 3", "(2, 6, 5)"),
        bad("mean_ablation: booleans", lambda: mean_ablation(model, gates > 0,
            jnp.ones((2, N, H))), "keep", "floating", "bool"),
        bad("mean_ablation: layer", lambda: mean_ablation(PARAMS, gates, gates), "params", "layers",
            "MultiHeadParams"),
        bad("order: axes", lambda: removal_order(scores[0]), "importance", "(L, N)", "(2,)"),
        bad("order: NaN", lambda: removal_order(scores * np.nan), "importance", "finite", "NaN"),
        bad("order: text", lambda: removal_order("first"), "importance", "numbers", "'first'"),
        bad("order: group", lambda: removal_order(scores, 3), "group_size", "divisor of N = 2",
            "3"),
        bad("order: float group", lambda: removal_order(scores, 1.0), "group_size", "divisor",
            "1.0"),
        bad("iterative: number", lambda: iterative_removal_order(lambda g: g, (2, 2), 5),
            "num_removed", "up to the 4", "5"),
        bad("iterative: shape", lambda: iterative_removal_order(lambda g: g, (2,), 1), "shape",
            "(L, N)", "(2,)"),
        bad("iterative: score", lambda: iterative_removal_order(scores, (2, 2), 1), "score",
            "a function", "ndarray"),
        bad("iterative: per round", lambda: iterative_removal_order(lambda g: g, (2, 2), 1,
            per_round=0), "per_round", "multiple", "0"),
        bad("head_mask: number", lambda: head_mask(np.zeros((1, 2), int), 2, (2, 2)), "num_removed",
            "0 to 1", "2"),
        bad("head_mask: outside", lambda: head_mask(np.array([[5, 0]]), 1, (2, 2)), "order",
            "below (2, 2)", "[5, 0]"),
        bad("head_mask: negative", lambda: head_mask(np.array([[0, -1]]), 1, (2, 2)), "order",
            "below (2, 2)", "[0, -1]"),
        bad("head_mask: floats", lambda: head_mask(np.array([[0.6, 1.0]]), 1, (2, 2)), "order",
            "integers", "float64"),
        bad("correlation: shapes", lambda: rank_correlation(scores, scores[0]), "other", "(2, 2)",
            "(2,)"),
        bad("correlation: alike", lambda: rank_correlation(scores * 0, scores), "one",
            "two different", "1"),
        bad("correlation: NaN", lambda: rank_correlation(scores, scores * np.nan), "other",
            "finite", "NaN"),
        *scored(importance.ablation, "ablation"),
        *scored(importance.gate_gradient, "gate_gradient"),
        *scored(importance.taylor, "taylor"),
        *scored(importance.curvature, "curvature"),
        bad("importance: none", lambda: importance.mean_importance(importance.taylor, loss, gates,
            gates, []), "examples", "at least one", "none"),
        bad("importance: score", lambda: importance.mean_importance("taylor", loss, gates, gates,
            [1.0]), "score", "a function", "'taylor'"),
        bad("importance: gates", lambda: importance.mean_importance(importance.taylor, loss, gates,
            [1.0], [1.0]), "gates", "an array", "list"),
        bad("normalize: vector", lambda: importance.normalize_layers(gates[0]), "importance",
            "(L, N)", "(6,)"),
        bad("normalize: list", lambda: importance.normalize_layers([[1.0]]), "importance",
            "an array", "list"),
        bad("weight_norm: layer", lambda: importance.weight_norm(PARAMS), "params", "layers",
            "MultiHeadParams"),
        bad("chance: seed", lambda: importance.random_importance(4.2, (2, 2)), "rng_key",
            "PRNG key", "4.2"),
        bad("gates: seed", lambda: hard_concrete.sample_gates(4.2, gates), "rng_key", "PRNG key",
            "4.2"),
        bad("gates: alpha list", lambda: hard_concrete.sample_gates(RNG_KEY, [0.0]), alpha,
            "an array", "list"),
        bad("gates: alpha integers", lambda: hard_concrete.sample_gates(RNG_KEY, jnp.arange(3)),
            alpha, "floating", "int32"),
        bad("open: integers", lambda: hard_concrete.nonzero_probability(jnp.arange(3)), alpha,
            "floating", "int32"),
        bad("l0: list", lambda: hard_concrete.expected_l0([0.0]), alpha, "an array", "list"),
        bad("sure gates: booleans", lambda: hard_concrete.deterministic_gates(gates > 0), alpha,
            "floating", "bool"),
        bad("alpha: percent", lambda: hard_concrete.init_log_alpha((2,), 95.0), "probability",
            "between 0 and 1", "95.0"),
        bad("alpha: text", lambda: hard_concrete.init_log_alpha((2,), "0.5"), "probability",
            "between 0 and 1", "'0.5'"),
        bad("alpha: shape", lambda: hard_concrete.init_log_alpha(2.5), "shape", "sizes", "2.5"),
    ]  # fmt: skip


def of_models_and_storage() -> list[WrongCall]:
    """The entry points that are cheap to reach."""
    ids = jnp.ones((B, T), int)
    config = tiny.TinyConfig(vocab_size=11, max_length=8, d_model=8, num_layers=1, num_heads=2)
    params = tiny.init_tiny(RNG_KEY, config)
    return [
        bad("tiny: heads", lambda: replace(config, num_heads=0), "num_heads", "positive", "0"),
        bad("tiny: positions", lambda: replace(config, positions="alibi"), "positions", "one of",
            "'alibi'"),
        bad("tiny: rank", lambda: tiny.forward(params, ids[0], config=config), "token_ids",
            "(B, T)", "(5,)"),
        bad("tiny: floats", lambda: tiny.forward(params, X[..., 0], config=config), "token_ids",
            "integers", "float32"),
        bad("tiny: too long", lambda: tiny.forward(params, jnp.ones((1, 9), int), config=config),
            "token_ids", "at most 8", "(1, 9)"),
        bad("tiny: seed", lambda: tiny.init_tiny(4.2, config), "rng_key", "PRNG key", "4.2"),
        bad("tiny: dict", lambda: tiny.forward({}, ids, config=config), "params", "TinyParams",
            "dict"),
        bad("load: missing", lambda: load_tree({}, {"w": X}), "['w']", "an array", "none"),
        bad("load: shape", lambda: load_tree({"['w']": np.ones(2)}, {"w": X}), "['w']",
            "(2, 5, 10)", "(2,)"),
        bad("table: lengths", lambda: write_table(Path("unused"), {"a": [1], "b": [1, 2]}),
            "columns", "one length", "shapes"),
        bad("table: nothing", lambda: write_table(Path("unused"), {}), "columns", "one or more",
            "shapes"),
        bad("package: path", lambda: find_package("mha-book"), "package", "top-level", "mha-book"),
        bad("package: None", lambda: find_package(None), "package", "top-level", "None"),
        bad("sample: hot", lambda: sample_token(X[0], RNG_KEY, temperature=0.0), "temperature",
            "positive", "0.0"),
        bad("sample: top", lambda: sample_token(X[0], RNG_KEY, top_k=0), "top_k", "from 1", "0"),
    ]  # fmt: skip


def of_sharding() -> list[WrongCall]:
    """Sharding: plans, placements, meshes, and the commands that start processes."""
    mesh = AbstractMesh((2, 4), ("heads", "ring"))
    ring, zigzag = MeshAxes(sequence="ring"), make_placement("zigzag", 8, 4)
    x, sizes = jnp.ones((2, 8, 3)), {"batch": 1, "num_heads": 4, "length": 8, "head_dim": 3}
    plan = partial(plan_cost, **sizes)
    cache = init_cache(2, 4, 8, 3)

    def turn(query: Any = x, key: Any = x, **options: Any) -> Any:
        return ring_attention(query, key, key, **{"mesh": mesh, "axes": ring, **options})

    def exchange(query: Any = x, **options: Any) -> Any:
        return all_to_all_attention(query, x, x, **{"mesh": mesh, "axes": ring, **options})

    def layer(params: Any = PARAMS, **options: Any) -> Any:
        return sharded_multi_head_attention(params, X, **{"mesh": mesh, "axes": ring, **options})

    return [
        bad("place: name", lambda: make_placement("spiral", 8, 2), "placement", "zigzag", "spiral"),
        bad("place: length", lambda: make_placement("zigzag", 6, 2), "length", "multiple of 4",
            "6"),
        bad("place: devices", lambda: make_placement("striped", 8, 0), "devices", "positive", "0"),
        bad("place: a name", lambda: place(x, "zigzag"), "placement", "Placement", "str"),
        bad("place: axis", lambda: place(x, zigzag, -1), "x", "axis -1 of 8", "(2, 8, 3)"),
        bad("restore: length", lambda: restore(x[:, :4], zigzag), "x", "axis -2 of 8", "(2, 4, 3)"),
        bad("balance: a name", lambda: balance("zigzag"), "placement", "Placement", "str"),
        bad("ring: no axes", lambda: turn(axes="ring"), "axes", "MeshAxes", "str"),
        bad("ring: no ring", lambda: turn(axes=MeshAxes(heads="heads")), "axes.sequence",
            "the ring", "None"),
        bad("ring: axis", lambda: turn(axes=MeshAxes(sequence="rank")), "axes.sequence",
            "'ring'", "'rank'"),
        bad("ring: mesh", lambda: turn(mesh=4), "mesh", "Mesh", "int"),
        bad("ring: no mesh", lambda: turn(mesh=None), "mesh", "jax.set_mesh", "None"),
        bad("ring: positions", lambda: turn(x[:, :6], x[:, :6]), "query", "multiple of 4", "6"),
        bad("ring: keys", lambda: turn(key=x[:, :4]), "key", "axis -2 of 8", "4"),
        bad("ring: unroll", lambda: turn(unroll=0), "unroll", "positive", "0"),
        bad("ring: placement", lambda: turn(placement="spiral", is_causal=True), "placement",
            "zigzag", "spiral"),
        bad("ring: other placement",
            lambda: turn(placement=make_placement("zigzag", 16, 4), is_causal=True), "placement",
            "4 devices and 8 positions", "16 positions"),
        bad("ring: scale", lambda: turn(scale=jnp.ones(())), "scale", "a number", "Array"),
        bad("exchange: heads", exchange, "query", "multiple of 4", "2"),
        bad("exchange: no axis", lambda: exchange(axes=MeshAxes()), "axes.sequence", "an axis",
            "None"),
        bad("sharded layer: method", lambda: layer(method="star"), "method", "ring", "'star'"),
        bad("sharded layer: fused", lambda: layer(FUSED), "params", "MultiHeadParams",
            "FusedMultiHeadParams"),
        bad("sharded layer: heads", lambda: layer(axes=MeshAxes(heads="ring")), "query",
            "multiple of 4", "6"),
        bad("sharded layer: kv_heads", lambda: layer(kv_heads="copy"), "kv_heads", "replicate",
            "'copy'"),
        bad("shard: axis", lambda: shard_params(PARAMS, "columns", mesh), "axes.heads", "'heads'",
            "'columns'"),
        bad("shard cache: sequences", lambda: shard_cache(cache, MeshAxes("ring"), mesh), "cache",
            "multiple of 4", "2"),
        bad("plan: tuple", lambda: plan(devices=(1, 1, 4)), "devices", "MeshSizes", "tuple"),
        bad("plan: length", lambda: plan(devices=MeshSizes(sequence=3)), "length", "multiple of 3",
            "8"),
        bad("plan: heads", lambda: plan(devices=MeshSizes(heads=3)), "query", "multiple of 3",
            "4"),
        bad("plan: method", lambda: plan(devices=MeshSizes(), method="star"), "method", "ring",
            "'star'"),
        bad("plan: batch", lambda: plan(devices=MeshSizes(), batch=0), "batch", "positive", "0"),
        bad("plan: negative width", lambda: plan(devices=MeshSizes(), d_model=0), "d_model",
            "positive", "0"),
    ]  # fmt: skip


def of_pieces() -> list[WrongCall]:
    """The softmax whose scores come in pieces."""
    known = online_softmax.init((T, C), jnp.float32)
    scores, values = jnp.ones((T, 2)), jnp.ones((2, C))

    def update(known: Any = known, scores: Any = scores, values: Any = values) -> Callable[[], Any]:
        return lambda: online_softmax.update(known, scores, values)

    def init(shape: Any = (T, C), dtype: Any = jnp.float32) -> Callable[[], Any]:
        return lambda: online_softmax.init(shape, dtype)

    narrow = known._replace(total=known.total[1:])
    return [
        bad("online init: number", init(3), "shape", "a tuple", "3"),
        bad("online init: one axis", init((3,)), "shape", "(…, r, C)", "(3,)"),
        bad("online init: negative", init((T, -1)), "shape", "0 or more", "-1"),
        bad("online init: integers", init(dtype=int), "dtype", "floating", "int"),
        bad("online update: tuple", update(tuple(known)), "known", "SoftmaxState", "tuple"),
        bad("online update: list", update(scores=[[1.0]]), "scores", "an array", "list"),
        bad("online update: rows", update(scores=scores[1:]), "scores", "(5, 2)", "(4, 2)"),
        bad("online update: batch", update(scores=scores[None]), "scores", "(5, 2)", "(1, 5, 2)"),
        bad("online update: half", update(scores=scores.astype(jnp.float16)), "scores", "float32",
            "float16"),
        bad("online update: integers", update(values=values.astype(int)), "values", "floating",
            "int32"),
        bad("online update: keys", update(values=values[1:]), "values", "axis -2", "1, shape"),
        bad("online update: width", update(values=values[:, :1]), "values", "axis -1", "1, shape"),
        bad("online update: values of more", update(values=values[None]), "values", "batch axes ()",
            "(1,)"),
        bad("online merge: None", lambda: online_softmax.merge(known, None), "other",
            "SoftmaxState", "NoneType"),
        bad("online merge: shape",
            lambda: online_softmax.merge(known, online_softmax.init((1, C), jnp.float32)), "other",
            "(5, 11)", "(1, 11)"),
        bad("online merge: dtype",
            lambda: online_softmax.merge(known, online_softmax.init((T, C), jnp.float16)), "other",
            "float32", "float16"),
        bad("online finalize: array", lambda: online_softmax.finalize(scores), "known",
            "SoftmaxState", "Array"),
        bad("online finalize: rows", lambda: online_softmax.finalize(narrow), "known.total",
            "(5, 1)", "(4, 1)"),
        bad("online finalize: None",
            lambda: online_softmax.finalize(SoftmaxState(None, known.total, known.output)),
            "known.maximum", "an array", "NoneType"),
    ]  # fmt: skip


CASES: list[WrongCall] = [
    *of_heads(),
    *of_masks(),
    *of_operands("weights", attention_weights, has_value=False),
    *of_operands("reference", scaled_dot_product_attention, has_value=True),
    *of_operands("attend", attend, has_value=True),
    *of_operands("attention_spec", attention_spec, has_value=True),
    *of_dispatch(),
    *of_the_layer(),
    *of_parameters(),
    *of_layers(),
    *of_more_heads(),
    *of_more_masks(),
    *of_more_operands("weights", attention_weights, has_value=False),
    *of_more_operands("reference", scaled_dot_product_attention, has_value=True),
    *of_more_operands("attend", attend, has_value=True),
    *of_more_operands("attention_spec", attention_spec, has_value=True),
    *of_more_dispatch(),
    *of_other_parameters(),
    *of_the_layer_by_accident(),
    *of_more_parameters(),
    *of_gradients(),
    *of_flash(),
    *of_pieces(),
    *of_rope_and_layers(),
    *of_dropout(),
    *of_cache(),
    *of_groups(),
    *of_specialization(),
    *of_pruning(),
    *of_models_and_storage(),
    *of_sharding(),
    bad(
        "as_mask",
        lambda: as_mask(jnp.ones((B, S), bool), False, (B, N, T, S)), "mask", "(…, N, T, S)",
        "shape (2, 7)",
    ),
]  # fmt: skip


UNSEEN: dict[str, Callable[[], Any]] = {
    # Arrays (B, T, N, H) in the default layout, where N = T: every axis fits.
    "the other layout": lambda: attend(SQUARE, SQUARE, SQUARE),
    # With T = S and N = K the three operands have one shape, in whatever order.
    "operands in another order": lambda: attend(2 * SQUARE, 3 * SQUARE, SQUARE),
    # True = attend here; elsewhere True = hide. Both are booleans of the same axes.
    "a mask of the other polarity": lambda: attend(
        Q, KEY, VALUE, mask=jnp.triu(jnp.ones((1, 1, T, S), bool), 1)
    ),
    # 0 and 1 in floating point: a bias may hold any numbers.
    "a mask as a bias": lambda: attend(Q, KEY, VALUE, bias=jnp.ones((1, 1, T, S))),
    # Inside jax.jit values are not known: shapes and dtypes are checked, lengths are not.
    "lengths beyond S under jit": lambda: jax.jit(
        lambda lengths: attend(Q, KEY, VALUE, mask=padding(lengths))
    )(jnp.array([S + 1, -1])),
    # One length of S for every sequence, or of T: both are numbers from 0 to S.
    "lengths of the queries as those of the keys": lambda: attend(
        Q, KEY, VALUE, mask=padding(jnp.array([T, T]))
    ),
    # Weights (D, N, H) with N = H, the last two exchanged.
    "heads and width exchanged": lambda: project_heads(X, jnp.ones((D, 3, 3))),
    # The scale of another width, or 1 in place of None: any number may be meant.
    "a scale that was not meant": lambda: attend(Q, KEY, VALUE, scale=1.0),
}
"""Wrong calls that no program can tell from right ones: sizes, dtypes and values all fit."""
