"""What does not fit is refused: the message names the argument, what was wanted and what came.

The runtime type checks would stop most of it earlier; they are off in these tests and in use.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mha_book
from mha_book import (
    FusedMultiHeadParams,
    Mask,
    attend,
    attention_spec,
    attention_weights,
    causal,
    combine_heads,
    explicit,
    fuse,
    identity_params,
    init_multi_head,
    multi_head_attention,
    padding,
    scaled_dot_product_attention,
    select,
    sliding_window,
    split_heads,
    unfuse,
)
from mha_book.heads import heads_first
from mha_book.layers import gelu, layer_norm, linear
from mha_book.masks import as_mask
from mha_book.multihead.layer import project_heads
from mha_book.multihead.parameters import check_params

pytestmark = pytest.mark.usefixtures("no_type_checks")

B, N, K, T, S, H, C, D = 2, 6, 2, 5, 7, 3, 11, 10

Q = jnp.ones((B, N, T, H))
KEY = jnp.ones((B, K, S, H))
VALUE = jnp.ones((B, K, S, C))
X, Z = jnp.ones((B, T, D)), jnp.ones((B, S, D))
PARAMS = init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, head_dim=H, use_bias=True)
FUSED = fuse(PARAMS)
RNG_KEY = jax.random.key(0)


def bad(name: str, call: Callable[[], Any], argument: str, expected: str, got: str) -> Any:
    return pytest.param(call, argument, expected, got, id=name)


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
        bad("window: negative left", lambda: sliding_window(-1), "left", "non-negative", "-1"),
        bad("window: negative right", lambda: sliding_window(1, -2), "right", "non-neg", "-2"),
        bad("window: float", lambda: sliding_window(1.5), "left", "integer", "1.5"),
        bad("window: boolean", lambda: sliding_window(True), "left", "integer", "True"),
        bad("window: array", lambda: sliding_window(jnp.array(2)), "left", "integer", "Array"),
        bad(
            "window: offset", lambda: sliding_window(1, 1, 0.5), "query_offset", "integer", "0.5"
        ),
        bad("padding: float", lambda: padding(lengths), "key_lengths", "integers", "float32"),
        bad("padding: int", lambda: padding(3), "key_lengths", "an array of integers", "3"),
        bad("padding: list", lambda: padding([1, 2]), "key_lengths", "an array", "[1, 2]"),
        bad("padding: None", lambda: padding(None), "key_lengths", "an array", "None"),
        bad(
            "padding: boolean",
            lambda: padding(jnp.ones(2, bool)), "key_lengths", "array of integers", "bool",
        ),
        bad(
            "padding: queries",
            lambda: padding(jnp.array([1]), lengths), "query_lengths", "integers", "float32",
        ),
        bad("explicit: float", lambda: explicit(Q), "array", "boolean", "float32"),
        bad("explicit: integer", lambda: explicit(Q.astype(int)), "array", "boolean", "int32"),
        bad("explicit: a vector", lambda: explicit(jnp.ones(3, bool)), "array", "rank 2", "(3,)"),
        bad("explicit: list", lambda: explicit([[True]]), "array", "boolean array", "list"),
        bad("explicit: None", lambda: explicit(None), "array", "boolean array", "NoneType"),
        bad("and: no mask", lambda: causal() & square, "other (right of &)", "a Mask", "Array"),
        bad("and: None", lambda: causal() & None, "other (right of &)", "a Mask", "NoneType"),
        bad(
            "and: two ranks",  # (B, S) would be taken for (T, S)
            lambda: explicit(square) & explicit(jnp.ones((B, S), bool)),
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
            on(mask=explicit(jnp.ones((B, S), bool))), "mask", full, "shape (2, 7)",
        ),
        ("lengths", on(mask=padding(jnp.array([1, 2, 3]))), "mask.key_lengths", "(2,)", "(3,)"),
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
            lambda: attend(Q, KEY, VALUE, **name), "implementation", "jax_nn, cudnn, ref", "flash",
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


CASES = [
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
    bad(
        "as_mask",
        lambda: as_mask(jnp.ones((B, S), bool), False, (B, N, T, S)), "mask", "(…, N, T, S)",
        "shape (2, 7)",
    ),
]  # fmt: skip


@pytest.mark.parametrize("call, argument, expected, got", CASES)
def test_message(call: Callable[[], Any], argument: str, expected: str, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    match = re.fullmatch(rf"{re.escape(argument)}: expected (.+); got (.+)", message, re.DOTALL)
    assert match, message
    assert expected in match[1], message
    assert got in match[2], message


def test_every_public_function_is_here() -> None:
    """Functions alone: what a class takes is checked where it is used."""
    ids = {str(case.id).split(":")[0] for case in CASES}
    tested = {
        "attend": "attend", "attention_weights": "weights", "causal": "causal",
        "combine_heads": "combine", "attention_spec": "attention_spec", "explicit": "explicit",
        "fuse": "fuse",
        "identity_params": "identity", "init_multi_head": "init", "multi_head_attention": "layer",
        "padding": "padding", "scaled_dot_product_attention": "reference",
        "sliding_window": "window", "split_heads": "split", "unfuse": "unfuse",
    }  # fmt: skip
    public = {name for name in mha_book.__all__ if not isinstance(getattr(mha_book, name), type)}
    assert public - {"select"} == set(tested)  # choose takes a request that describe has checked
    counts = {
        name: sum(str(c.id).startswith(f"{word}:") for c in CASES) for name, word in tested.items()
    }
    assert set(tested.values()) <= ids
    assert {name: count for name, count in counts.items() if count < 5} == {}


def test_choose_takes_what_describe_gives() -> None:
    assert select(attention_spec(Q, KEY, VALUE)).name == "reference"


def test_fused_parameters_of_the_wrong_head_width() -> None:
    fused = FusedMultiHeadParams(jnp.ones((D, 10, H)), jnp.ones((N, 4, D)))
    with pytest.raises(ValueError, match=r"w_o: expected .*\(6, 3, any\); got shape \(6, 4, 10\)"):
        multi_head_attention(fused, X)


def test_numpy_arrays_are_arrays() -> None:
    """They are taken where their shapes and dtypes fit, and refused by the same messages."""
    q, k = np.ones((N, T, H), np.float32), np.ones((K, S, H), np.float32)
    assert attend(q, k, k).shape == (N, T, H)
    with pytest.raises(ValueError, match="key: expected axis -1"):
        attend(q, k[..., :2], k)
