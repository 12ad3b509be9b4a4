"""What attention does by convention in the libraries that people use, measured.

    python -m experiments.conventions [--quick] [--out FOLDER]

Each implementation of :data:`SUBJECTS` is called as a function of queries, keys and values; in a
layer, identities or the operands themselves take the place of its projections. The checker of
``mha_book.conformance`` finds its conventions. Needs ``requirements/peers.txt``; nothing is
downloaded, and a model of ``transformers`` has one layer of random weights.
"""

import contextlib
import importlib
import io
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.shared import ROOT, Run, experiment
from mha_book.attention import attend
from mha_book.conformance import check_attention
from mha_book.conformance.check import quietly
from mha_book.conformance.diagnose import EXACT, close
from mha_book.conformance.oracle import (
    CONVENTIONS,
    RIGHT,
    Case,
    Conventions,
    frequencies,
    turn,
)
from mha_book.conformance.probes import make_case
from mha_book.conformance.subject import POLARITIES, Interface, function_interfaces
from mha_book.rope import rotary_angles, rotate

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("KERAS_HOME", str(ROOT / "_build" / "keras"))

RATE = 0.5
KEYS = {"bfloat16": 1028, "float16": 4098}
"""How many equal weights: the sum of as many ones is another number once it is rounded."""


class Subject(NamedTuple):
    """An implementation: the package with it, its kind of arrays, and what makes a function.

    ``make`` may take the dropout's rate; the function is that of evaluation all the same.
    """

    package: str
    kind: str
    make: Callable[..., Callable[..., Any]]


SUBJECTS: dict[str, Subject] = {}


def subject(name: str, package: str, kind: str, *given: Any) -> Callable[..., Any]:
    """Enter what makes a subject under a name."""

    def enter(make: Callable[..., Any]) -> Callable[..., Any]:
        SUBJECTS[name] = Subject(package, kind, partial(make, *given))
        return make

    return enter


# --- JAX -----------------------------------------------------------------------------------------


@subject("mha_book.attention.attend", "mha-book", "jax")
def ours() -> Callable[..., Any]:
    return attend


@subject("jax.nn.dot_product_attention", "jax", "jax")
def jax_nn() -> Callable[..., Any]:
    return jax.nn.dot_product_attention


@subject("flax.nnx.dot_product_attention", "flax", "jax", "nnx")
@subject("flax.linen.dot_product_attention", "flax", "jax", "linen")
def flax(part: str, rate: float = 0.0) -> Callable[..., Any]:
    function = importlib.import_module(f"flax.{part}").dot_product_attention
    options = {"dropout_rate": rate, "dropout_rng": jax.random.key(0), "deterministic": True}

    def nnx(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False) -> Any:
        return function(query, key, value, mask=mask, is_causal=is_causal, **options)

    def linen(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return function(query, key, value, mask=mask, **options)

    return {"nnx": nnx, "linen": linen}[part]


@subject("equinox.nn.MultiheadAttention", "equinox", "jax")
def equinox(rate: float = 0.0) -> Callable[..., Any]:
    import equinox as eqx

    def attention(query: Any, key: Any, value: Any, num_heads: int, mask: Any = None) -> Any:
        width, dtype = query.shape[-1], query.dtype
        layer = eqx.nn.MultiheadAttention(
            num_heads, width, dropout_p=rate, inference=True, dtype=dtype, key=jax.random.key(0)
        )
        layer = jax.tree.map(lambda x: jnp.eye(width, dtype=dtype) if eqx.is_array(x) else x, layer)
        return layer(query, key, value, mask=mask, key=jax.random.key(1))

    return attention


@subject("haiku.MultiHeadAttention", "dm-haiku", "jax")
def haiku() -> Callable[..., Any]:
    import haiku as hk

    def attention(query: Any, key: Any, value: Any, num_heads: int, mask: Any = None) -> Any:
        if key.shape[-1] != query.shape[-1]:
            raise ValueError("no grouped heads")

        def call(*operands: Any) -> Any:
            size = query.shape[-1] // num_heads
            identity = hk.initializers.Identity()
            return hk.MultiHeadAttention(num_heads, size, w_init=identity)(*operands, mask=mask)

        layer = hk.transform(call)
        params = layer.init(jax.random.key(0), query, key, value)
        return layer.apply(params, None, query, key, value)

    return attention


@subject("keras.ops.dot_product_attention", "keras", "jax")
def keras_ops() -> Callable[..., Any]:
    import keras

    return keras.ops.dot_product_attention


@subject("keras.layers.GroupQueryAttention", "keras", "jax")
def keras_layer(rate: float = 0.0) -> Callable[..., Any]:
    import keras

    def attention(
        query: Any, key: Any, value: Any, num_heads: int, num_kv_heads: int,
        attention_mask: Any = None, use_causal_mask: bool = False, window: int | None = None,
    ) -> Any:  # fmt: skip
        width, keys = query.shape[-1], key.shape[-1]
        layer = keras.layers.GroupQueryAttention(
            width // num_heads, num_heads, num_kv_heads, dropout=rate, use_bias=False,
            sliding_window=window, dtype=str(query.dtype),
        )  # fmt: skip
        layer.build(query.shape, value.shape, key.shape)
        shapes = [tuple(weight.shape) for weight in layer.weights]
        layer.set_weights(
            [np.eye(n).reshape(x) for n, x in zip((width, keys, keys, width), shapes, strict=True)]
        )
        options = {"attention_mask": attention_mask, "use_causal_mask": use_causal_mask}
        return layer(query, value, key, training=False, **options)

    return attention


@subject("tokamax.dot_product_attention", "tokamax", "jax")
def tokamax() -> Callable[..., Any]:
    import tokamax
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # else it takes the arguments of this process for its own
    return tokamax.dot_product_attention


# --- torch ---------------------------------------------------------------------------------------


@subject("torch scaled_dot_product_attention", "torch", "torch")
def torch_function(rate: float = 0.0) -> Callable[..., Any]:
    import torch

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, rate, is_causal, enable_gqa=enable_gqa
        )

    return attention


@subject("torch.nn.MultiheadAttention", "torch", "torch", True)
@subject("torch.nn.MultiheadAttention, need_weights=False", "torch", "torch", False)
def torch_layer(need_weights: bool, rate: float = 0.0) -> Callable[..., Any]:
    import torch

    def attention(query: Any, key: Any, value: Any, num_heads: int, attn_mask: Any = None) -> Any:
        width = query.shape[-1]
        layer = torch.nn.MultiheadAttention(width, num_heads, rate, bias=False, batch_first=True)
        layer.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(width))
        layer.eval().to(query.dtype)
        return layer(query, key, value, attn_mask=attn_mask, need_weights=need_weights)[0]

    return attention


def given(value: Any) -> Any:
    """A module that returns an array whatever it is called with."""
    import torch

    class Given(torch.nn.Module):
        def forward(self, *_: Any) -> Any:
            return value

    return Given()


@subject("x_transformers.Attention", "x-transformers", "torch", False)
@subject("x_transformers.Attention, flash", "x-transformers", "torch", True)
def x_transformers(flash: bool, rate: float = 0.0) -> Callable[..., Any]:
    import torch
    from x_transformers.x_transformers import Attention

    def attention(
        query: Any, key: Any, value: Any, num_heads: int, num_kv_heads: int,
        attn_mask: Any = None, causal: bool = False, window: int | None = None,
    ) -> Any:  # fmt: skip
        width = query.shape[-1]
        layer = Attention(
            width, dim_head=width // num_heads, heads=num_heads, kv_heads=num_kv_heads,
            causal=causal, flash=flash, dropout=rate, max_attend_past=window,
        ).eval()  # fmt: skip
        layer.to_q, layer.to_k, layer.to_v = map(given, (query, key, value))
        layer.to_out = torch.nn.Identity()
        return layer(query, context=key, attn_mask=attn_mask)

    return attention


@subject("transformers Llama, eager", "transformers", "torch", "Llama", "eager")
@subject("transformers Llama, sdpa", "transformers", "torch", "Llama", "sdpa")
@subject("transformers Mistral, eager", "transformers", "torch", "Mistral", "eager")
@subject("transformers Mistral, sdpa", "transformers", "torch", "Mistral", "sdpa")
@subject("transformers GPT-J, eager", "transformers", "torch", "GPTJ", "eager")
@subject("transformers GPT-2, eager", "transformers", "torch", "GPT2", "eager")
@subject("transformers GPT-2, sdpa", "transformers", "torch", "GPT2", "sdpa")
@subject("transformers BERT, eager", "transformers", "torch", "Bert", "eager")
@subject("transformers BERT, sdpa", "transformers", "torch", "Bert", "sdpa")
def transformers(family: str, implementation: str, rate: float = 0.0) -> Callable[..., Any]:
    """A model of one layer: earlier keys come from its cache, masks are those of its tokens."""
    import torch
    import transformers as library

    grouped = family in ("Llama", "Mistral")

    @cache
    def model_of(heads: int, kv_heads: int, size: int, window: int | None) -> Any:
        sizes = {"vocab_size": 2, "hidden_size": heads * size, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": heads, "max_position_embeddings": 2048}
        sizes |= {"num_key_value_heads": kv_heads} if grouped else {}
        sizes |= {
            "Llama": {"attention_dropout": rate},
            "Mistral": {"attention_dropout": rate, "sliding_window": window},
            "GPT2": {"attn_pdrop": rate},
            "GPTJ": {"attn_pdrop": rate, "rotary_dim": size},
            "Bert": {"attention_probs_dropout_prob": rate},
        }[family]
        config = getattr(library, f"{family}Config")(**sizes)
        config._attn_implementation = implementation
        return getattr(library, f"{family}Model")(config).eval()

    def layer_of(model: Any) -> Any:
        if family == "Bert":
            return model.encoder.layer[0].attention.self
        return model.layers[0].self_attn if grouped else model.h[0].attn

    def project(layer: Any, q: Any, k: Any, v: Any) -> None:
        """Let the projections return the operands, and the output projection its input."""
        if family == "GPT2":
            layer.c_attn, layer.c_proj = given(torch.cat([q, k, v], -1)), torch.nn.Identity()
        elif family == "Bert":
            layer.query, layer.key, layer.value = map(given, (q, k, v))
        else:
            layer.q_proj, layer.k_proj, layer.v_proj = map(given, (q, k, v))
            setattr(layer, "o_proj" if grouped else "out_proj", torch.nn.Identity())

    def read(
        q: Any, k: Any, v: Any, num_heads: int, num_kv_heads: int, mask: Any, window: int | None
    ) -> Any:
        (batch, queries, width), keys = q.shape, k.shape[1]
        past = keys - queries
        if (num_kv_heads != num_heads and not grouped) or past < 0 or (past and family == "Bert"):
            raise ValueError("no grouped heads, and no keys but those of the tokens")
        if mask is not None and (mask.ndim != 2 or mask.is_floating_point()):
            raise ValueError("a model takes a mask of its tokens")
        model = model_of(num_heads, num_kv_heads, width // num_heads, window).to(q.dtype)
        layer, seen = layer_of(model), []
        cache = library.DynamicCache(config=model.config) if past else None
        hook = layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
        q = torch.cat([q.new_zeros(batch, past, width), q], 1)
        for part in [slice(0, past), slice(past, keys)] if past else [slice(keys)]:
            project(layer, q[:, part], k[:, part], v[:, part])
            model(
                inputs_embeds=torch.zeros_like(q[:, part]),
                attention_mask=None if mask is None else mask[:, : part.stop].long(),
                **({"past_key_values": cache, "use_cache": True} if past else {}),
            )
        hook.remove()
        return seen[-1]

    def attention(
        query: Any, key: Any, value: Any, num_heads: int, num_kv_heads: int, mask: Any = None
    ) -> Any:
        return read(query, key, value, num_heads, num_kv_heads, mask, None)

    def windowed(
        query: Any, key: Any, value: Any, num_heads: int, num_kv_heads: int, mask: Any = None,
        window: int | None = None,
    ) -> Any:  # fmt: skip
        return read(query, key, value, num_heads, num_kv_heads, mask, window)

    return windowed if family == "Mistral" else attention


# --- others --------------------------------------------------------------------------------------


@subject("mlx.core.fast.scaled_dot_product_attention", "mlx", "numpy")
def mlx() -> Callable[..., Any]:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)

    def array(x: Any) -> Any:
        if x.dtype.name == "bfloat16":
            return mx.array(x.astype(np.float32)).astype(mx.bfloat16)
        return mx.array(x)

    def attention(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> Any:
        mask = "causal" if causal else None if mask is None else array(mask)
        q, k, v = map(array, (query, key, value))
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)
        return np.array(out.astype(mx.float32))

    return attention


@cache
def onnx_model(types: tuple[str, ...], causal: bool, window: int | None) -> Any:
    """A graph of the one operator Attention."""
    from onnx import TensorProto, checker, helper

    names = ["q", "k", "v", "mask"][: len(types)]
    window_of = {} if window is None else {"left_window_size": window}
    opset = 24 if window is None else 25
    node = helper.make_node("Attention", names, ["out"], is_causal=int(causal), **window_of)
    *inputs, output = (
        helper.make_tensor_value_info(
            name, getattr(TensorProto, kind.upper()), [name + axis for axis in "bnts"]
        )
        for name, kind in zip([*names, "out"], [*types, types[0]], strict=True)
    )
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    checker.check_model(model)
    return model


def onnx_attention(run: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False,
        window: int | None = None,
    ) -> Any:  # fmt: skip
        operands = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
        kinds = tuple({"float32": "float"}.get(x.dtype.name, x.dtype.name) for x in operands)
        feeds = dict(zip(["q", "k", "v", "mask"], operands, strict=False))
        return run(onnx_model(kinds, is_causal, window), feeds)

    return attention


@subject("ONNX Attention, reference", "onnx", "numpy")
def onnx_reference() -> Callable[..., Any]:
    from onnx.reference import ReferenceEvaluator

    return onnx_attention(lambda model, feeds: ReferenceEvaluator(model).run(None, feeds)[0])


@subject("ONNX Attention, onnxruntime", "onnxruntime", "numpy")
def onnx_runtime() -> Callable[..., Any]:
    import onnxruntime

    def run(model: Any, feeds: Any) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return session.run(None, feeds)[0]

    return onnx_attention(run)


# --- rotary positions alone ----------------------------------------------------------------------


def rope_ours(x: Any) -> Any:
    return rotate(jnp.asarray(x), rotary_angles(jnp.arange(len(x)), x.shape[-1]))


def rope_equinox(x: Any) -> Any:
    import equinox as eqx

    return eqx.nn.RotaryPositionalEmbedding(x.shape[-1])(jnp.asarray(x))


def rope_x_transformers(x: Any) -> Any:
    import torch
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    angles, scale = RotaryEmbedding(x.shape[-1]).forward_from_seq_len(len(x))
    return apply_rotary_pos_emb(torch.tensor(x)[None], angles, scale)


def rope_mlx(x: Any) -> Any:
    import mlx.core as mx
    from mlx import nn

    return nn.RoPE(x.shape[-1])(mx.array(x)[None])


def rope_onnx(x: Any) -> Any:
    from onnx.reference.ops.op_rotary_embedding import rotary_embedding

    angles = np.arange(len(x))[:, None] * frequencies(x.shape[-1])
    tables = (f(angles).astype(np.float32)[None] for f in (np.cos, np.sin))
    return rotary_embedding(x[None, None], *tables)[0, 0]


ROPES = {
    "mha_book.attention.attend": rope_ours,
    "equinox.nn.MultiheadAttention": rope_equinox,
    "x_transformers.Attention": rope_x_transformers,
    "x_transformers.Attention, flash": rope_x_transformers,
    "mlx.core.fast.scaled_dot_product_attention": rope_mlx,
    "ONNX Attention, reference": rope_onnx,
}
"""What turns queries and keys ``(T, H)`` in libraries whose attention does not do so itself."""


def pairs_of(name: str) -> str | None:
    """Return which pairs of features a library turns by default."""
    if name not in ROPES:
        return None
    x = np.random.default_rng(0).normal(size=(7, 8)).astype(np.float32)
    turned = np.asarray(ROPES[name](x), np.float64).reshape(x.shape)
    return next(
        (kind for kind in ("half", "adjacent") if np.allclose(turned, turn(x, kind), atol=1e-4)),
        "other",
    )


# --- what is measured ----------------------------------------------------------------------------


def choice_of(interface: Interface, case: Case, known: Conventions, *names: str) -> Any:
    """Return the choices of conventions under which the oracle gives what a subject gives."""
    try:
        got = interface.call(case)
    except Exception:
        return None
    for choices in product(*(CONVENTIONS[name] for name in names)):
        conventions = known._replace(**dict(zip(names, choices, strict=True)))
        if close(got, interface.expect(case, conventions, RIGHT), EXACT):
            return choices[0]
    return "other"


def padded(causal: bool) -> Case:
    """A case with padding alone for some queries: a sequence's first, or all of a sequence."""
    case = make_case("plain")
    keys = np.arange(case.k.shape[2])
    first = np.array([0, 2 if causal else len(keys)])
    return case._replace(causal=causal, mask=(keys >= first[:, None])[:, None, None])


def sum_of_weights(interface_of: Callable[[str], Interface]) -> list[Any]:
    """Return in which dtype the softmax sums, and the sum of equal weights that came out.

    One value is 1 and the others are 0, so that one weight comes back.
    """
    for dtype, keys in KEYS.items():
        q, v = np.zeros((2, 1, 1, keys, 8))
        v[..., 0, :] = 1
        try:
            total = round(1 / interface_of(dtype).call(Case(q, q, v))[0, -1, 0])
        except Exception:
            continue
        if total >= keys:
            return [f"float32 ({dtype} operands)", total]
        rounded = f"rounded to {dtype}" if total > keys / 2 else f"{dtype}, one by one"
        return [rounded, total]
    return ["no half precision", None]


def measure(name: str) -> dict[str, Any]:
    """Return the row of a subject, each cell from a run."""
    one = SUBJECTS[name]
    with quietly():
        return _measure(name, one)


def _measure(name: str, one: Subject) -> dict[str, Any]:
    function = one.make()
    report = check_attention(function, kind=one.kind, name=name)
    words = report.conventions
    found = {
        convention: next(choice for choice, text in choices.items() if text == words[spaced])
        for convention, choices in CONVENTIONS.items()
        if (spaced := convention.replace("_", " ")) in words
    }
    told = {"kind": one.kind, "layout": words["layout"]}
    ways = dict(zip(POLARITIES, function_interfaces(function, **told), strict=False))
    known = Conventions(**found)

    def accepts(way: Interface) -> bool:
        tried = (choice_of(way, make_case(scene), known, "empty") for scene in ("mask", "padding"))
        return any(choice not in (None, "other") for choice in tried)

    masks = [polarity for polarity, way in ways.items() if "mask" in words and accepts(way)]
    polarity = masks[0] if masks else POLARITIES[0]
    interface = ways[polarity]
    causal = "causal" in interface.roles or "causal" in found
    plain = make_case("plain")
    short, long = (make_case(name) for name in ("causal-short", "causal-long"))
    corner = choice_of(interface, short, known, "corner")
    known = known._replace(corner=corner or "top-left")
    row = {
        "corner": corner,
        "corner, more queries": choice_of(interface, long, known, "corner", "emptied"),
        "empty": found.get("empty"),
        "emptied": found.get("emptied"),
        "window": found.get("window"),
        "kv_heads": found.get("kv_heads"),
        "rope": found.get("rope") or pairs_of(name),
    }
    if masks and not row["empty"]:  # a model that takes masks of padding alone
        row["empty"] = choice_of(interface, padded(causal), known, "empty")
    dropout = None
    if "rate" in one.make.func.__code__.co_varnames:
        other = function_interfaces(one.make(RATE), polarity=polarity, **told)[0]
        dropout = "off" if close(other.call(plain), interface.call(plain), EXACT) else "on"
    half = partial(function_interfaces, function, polarity=polarity, **told)
    return {
        "package": one.package,
        "version": version(one.package).partition("+")[0],
        "layout": words["layout"],
        "mask": masks,
        "causal": "always" if "causal" in found else "if asked" if causal else None,
        **(row if causal else {**row, "corner": None, "corner, more queries": None}),
        "dropout in evaluation": dropout,
        "sum": sum_of_weights(lambda dtype: half(dtype=dtype)[0]),
        "failed": [line.text for line in report.properties if line.outcome == "failed"],
        "diagnosis": list(report.diagnosis),
    }


def installed(package: str) -> bool:
    """Return whether a package is here."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


# --- what looks like a defect ---------------------------------------------------------------------

REPRODUCTIONS = {
    "x-transformers": {
        "the argument causal is ignored with flash": """
import torch
from x_transformers.x_transformers import Attention

x = torch.randn(1, 5, 32)
changed = x.clone()
changed[:, -1] += 1
for flash in (False, True):
    layer = Attention(32, dim_head=8, heads=4, flash=flash).eval()
    before, after = layer(x, causal=True), layer(changed, causal=True)
    moves = "stays" if before[0, 0].equal(after[0, 0]) else "moves"
    print("flash:" if flash else "plain:", "with another last token, the first output", moves)
""",
        "with more queries than keys, flash aligns the causal mask elsewhere": """
import torch
from x_transformers.attend import Attend

q, k, v = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 2, 8), torch.tensor([[1.0], [2.0]])
for flash in (False, True):
    out = Attend(causal=True, flash=flash)(q, k, v.expand(1, 1, 2, 8))[0]
    print("flash:" if flash else "plain:", [round(x, 2) for x in out[0, 0, :, 0].tolist()])
""",
    },
    "transformers": {
        "a boolean mask of four axes is added as 0 and 1 by eager attention": """
import torch
from transformers import LlamaConfig, LlamaModel

sizes = dict(vocab_size=16, hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
tokens, causal = torch.arange(5)[None], torch.ones(1, 1, 5, 5).tril().bool()
for name in ("sdpa", "eager"):
    config = LlamaConfig(**sizes, intermediate_size=32, attn_implementation=name)
    model = LlamaModel(config).eval()
    plain, masked = (model(tokens, attention_mask=m)[0] for m in (None, causal))
    same = torch.allclose(plain, masked, atol=1e-5)
    print(f"{name}: passing the causal mask", "changes nothing" if same else "changes the output")
""",
    },
    "onnx": {
        "the reference sums the softmax in bfloat16, where 256 + 1 is 256": """
import ml_dtypes
import numpy as np
from onnx import parser
from onnx.reference import ReferenceEvaluator

model = parser.parse_model('''<ir_version: 10, opset_import: ["": 24]>
    attention (bfloat16[B, N, T, H] q, bfloat16[B, N, S, H] k) => (bfloat16[B, N, T, S] weights)
    { out, key, value, weights = Attention <qk_matmul_output_mode=3> (q, k, k) }''')
q, k = (np.zeros((1, 1, length, 8), ml_dtypes.bfloat16) for length in (1, 1024))
(weights,) = ReferenceEvaluator(model).run(None, {"q": q, "k": k})
print("the weights of 1024 equal keys sum to", weights.astype(float).sum())
""",
    },
}
"""What its owner could be sent: package -> what looks wrong -> a program that shows it."""


def reproduced(code: str) -> list[str]:
    """Return what a program prints."""
    with quietly(), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    return printed.getvalue().splitlines()


class Sizes(NamedTuple):
    subjects: tuple[str, ...]


@experiment(
    "conventions.json",
    Sizes(tuple(SUBJECTS)),
    Sizes(tuple(name for name in SUBJECTS if name.startswith("transformers"))),
    seeds="operands: default_rng(0) of each scene",
)
def main(run: Run, sizes: Sizes) -> dict[str, Any]:
    rows = {}
    for name in sizes.subjects:
        rows[name] = measure(name)
        run.report(name)
    packages = {row["package"] for row in rows.values()}
    shown = {
        what: {"package": package, "code": code.strip(), "prints": reproduced(code)}
        for package, programs in REPRODUCTIONS.items()
        for what, code in programs.items()
        if package in packages
    }
    return {"rows": rows, "defects": shown}
