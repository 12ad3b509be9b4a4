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
import tomllib
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
from mha_book.conformance.oracle import CONVENTIONS, RIGHT, Case, Conventions, frequencies, turn
from mha_book.conformance.probes import make_case
from mha_book.conformance.subject import POLARITIES, Interface, function_interfaces
from mha_book.rope import rotary_angles, rotate

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("KERAS_HOME", str(ROOT / "_build" / "keras"))

RATE = 0.5
KEYS = {"bfloat16": 1028, "float16": 4098}
"""How many equal weights: the sum of as many ones is another number once it is rounded."""
Function = Callable[..., Any]


class Subject(NamedTuple):
    """An implementation: the package with it, its kind of arrays, and what makes a function.

    ``make`` may take the dropout's rate; the function is that of evaluation all the same. The
    checker reads from the function's signature what it can be asked for.
    """

    package: str
    kind: str
    make: Function


SUBJECTS = {
    "mha_book.attention.attend": Subject("mha-book", "jax", partial(lambda: attend)),
    "jax.nn.dot_product_attention": Subject(
        "jax", "jax", partial(lambda: jax.nn.dot_product_attention)
    ),
}


def subject(name: str, package: str, kind: str, *given: Any) -> Function:
    """Enter what makes a subject under a name."""

    def enter(make: Function) -> Function:
        SUBJECTS[name] = Subject(package, kind, partial(make, *given))
        return make

    return enter


# --- JAX -----------------------------------------------------------------------------------------


@subject("flax.nnx.dot_product_attention", "flax", "jax", "nnx")
@subject("flax.linen.dot_product_attention", "flax", "jax", "linen")
def flax(part: str, rate: float = 0.0) -> Function:
    function = importlib.import_module(f"flax.{part}").dot_product_attention
    options = {"dropout_rate": rate, "dropout_rng": jax.random.key(0), "deterministic": True}

    def nnx(query, key, value, mask=None, is_causal=False):
        return function(query, key, value, mask=mask, is_causal=is_causal, **options)

    def linen(query, key, value, mask=None):
        return function(query, key, value, mask=mask, **options)

    return {"nnx": nnx, "linen": linen}[part]


@subject("equinox.nn.MultiheadAttention", "equinox", "jax")
def equinox(rate: float = 0.0) -> Function:
    import equinox as eqx

    def attention(query, key, value, num_heads, mask=None):
        width, dtype = query.shape[-1], query.dtype
        layer = eqx.nn.MultiheadAttention(
            num_heads, width, dropout_p=rate, inference=True, dtype=dtype, key=jax.random.key(0)
        )
        layer = jax.tree.map(lambda x: jnp.eye(width, dtype=dtype) if eqx.is_array(x) else x, layer)
        return layer(query, key, value, mask=mask, key=jax.random.key(1))

    return attention


@subject("haiku.MultiHeadAttention", "dm-haiku", "jax")
def haiku() -> Function:
    import haiku as hk

    def attention(query, key, value, num_heads, mask=None):
        if key.shape[-1] != query.shape[-1]:
            raise ValueError("no grouped heads")

        def call(*operands):
            size, identity = query.shape[-1] // num_heads, hk.initializers.Identity()
            return hk.MultiHeadAttention(num_heads, size, w_init=identity)(*operands, mask=mask)

        layer = hk.transform(call)
        params = layer.init(jax.random.key(0), query, key, value)
        return layer.apply(params, None, query, key, value)

    return attention


@subject("keras.ops.dot_product_attention", "keras", "jax")
def keras_ops() -> Function:
    import keras

    return keras.ops.dot_product_attention


@subject("keras.layers.GroupQueryAttention", "keras", "jax")
def keras_layer(rate: float = 0.0) -> Function:
    import keras

    def attention(
        query, key, value, num_heads, num_kv_heads, attention_mask=None, use_causal_mask=False,
        window=None,
    ):  # fmt: skip
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
def tokamax() -> Function:
    import tokamax
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # else it takes the arguments of this process for its own
    return tokamax.dot_product_attention


# --- torch ---------------------------------------------------------------------------------------


@subject("torch scaled_dot_product_attention", "torch", "torch")
def torch_function(rate: float = 0.0) -> Function:
    import torch

    def attention(query, key, value, attn_mask=None, is_causal=False, enable_gqa=False):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, rate, is_causal, enable_gqa=enable_gqa
        )

    return attention


@subject("torch.nn.MultiheadAttention", "torch", "torch", True)
@subject("torch.nn.MultiheadAttention, need_weights=False", "torch", "torch", False)
def torch_layer(need_weights: bool, rate: float = 0.0) -> Function:
    import torch

    def attention(query, key, value, num_heads, attn_mask=None):
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

    module = torch.nn.Identity()
    module.forward = lambda *_: value
    return module


@subject("x_transformers.Attention", "x-transformers", "torch", False)
@subject("x_transformers.Attention, flash", "x-transformers", "torch", True)
def x_transformers(flash: bool, rate: float = 0.0) -> Function:
    import torch
    from x_transformers.x_transformers import Attention

    def attention(
        query, key, value, num_heads, num_kv_heads, attn_mask=None, causal=False, window=None
    ):
        width = query.shape[-1]
        layer = Attention(
            width, dim_head=width // num_heads, heads=num_heads, kv_heads=num_kv_heads,
            causal=causal, flash=flash, dropout=rate, max_attend_past=window,
        ).eval()  # fmt: skip
        layer.to_q, layer.to_k, layer.to_v = map(given, (query, key, value))
        layer.to_out = torch.nn.Identity()
        return layer(query, context=key, attn_mask=attn_mask)

    return attention


class Family(NamedTuple):
    """A model of ``transformers``: what its sizes are called, where its attention is, and in it.

    ``window`` and ``turned`` are the settings of a window and of the features that turn. ``into``
    are the projections to queries, keys and values, one or three; ``out`` is the output projection.
    """

    rate: str
    layer: Function
    into: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    grouped: bool = False
    window: str = ""
    turned: str = ""


FAMILIES = {
    "Llama": Family("attention_dropout", lambda m: m.layers[0].self_attn, grouped=True),
    "Mistral": Family(
        "attention_dropout", lambda m: m.layers[0].self_attn, grouped=True, window="sliding_window"
    ),
    "GPT2": Family("attn_pdrop", lambda m: m.h[0].attn, ("c_attn",), "c_proj"),
    "GPTJ": Family("attn_pdrop", lambda m: m.h[0].attn, out="out_proj", turned="rotary_dim"),
    "Bert": Family(
        "attention_probs_dropout_prob", lambda m: m.encoder.layer[0].attention.self,
        ("query", "key", "value"), "",
    ),
}  # fmt: skip


@subject("transformers Llama, eager", "transformers", "torch", "Llama", "eager")
@subject("transformers Llama, sdpa", "transformers", "torch", "Llama", "sdpa")
@subject("transformers Mistral, eager", "transformers", "torch", "Mistral", "eager")
@subject("transformers Mistral, sdpa", "transformers", "torch", "Mistral", "sdpa")
@subject("transformers GPT-J, eager", "transformers", "torch", "GPTJ", "eager")
@subject("transformers GPT-2, eager", "transformers", "torch", "GPT2", "eager")
@subject("transformers GPT-2, sdpa", "transformers", "torch", "GPT2", "sdpa")
@subject("transformers BERT, eager", "transformers", "torch", "Bert", "eager")
@subject("transformers BERT, sdpa", "transformers", "torch", "Bert", "sdpa")
def transformers(name: str, implementation: str, rate: float = 0.0) -> Function:
    """A model of one layer: earlier keys come from its cache, masks are those of its tokens."""
    import torch
    import transformers as library

    family = FAMILIES[name]

    @cache
    def model_of(heads: int, kv_heads: int, size: int, window: int | None) -> Any:
        sizes = {"vocab_size": 2, "hidden_size": heads * size, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": heads, "max_position_embeddings": 2048, family.rate: rate}
        sizes |= {"num_key_value_heads": kv_heads} if family.grouped else {}
        settings = {family.window: window, family.turned: size}
        sizes |= {setting: value for setting, value in settings.items() if setting}
        config = getattr(library, f"{name}Config")(**sizes)
        config._attn_implementation = implementation
        return getattr(library, f"{name}Model")(config).eval()

    def windowed(query, key, value, num_heads, num_kv_heads, mask=None, window=None):
        (batch, queries, width), keys = query.shape, key.shape[1]
        past = keys - queries
        alone = num_kv_heads == num_heads or family.grouped
        if not alone or past < 0 or (past and not family.out):
            raise ValueError("no grouped heads, and no keys but those of the tokens")
        if mask is not None and (mask.ndim != 2 or mask.is_floating_point()):
            raise ValueError("a model takes a mask of its tokens")
        model = model_of(num_heads, num_kv_heads, width // num_heads, window).to(query.dtype)
        layer, seen = family.layer(model), []
        if family.out:
            setattr(layer, family.out, torch.nn.Identity())
        cache = library.DynamicCache(config=model.config) if past else None
        hook = layer.register_forward_hook(lambda module, inputs, output: seen.append(output[0]))
        query = torch.cat([query.new_zeros(batch, past, width), query], 1)
        for part in [slice(0, past), slice(past, keys)] if past else [slice(keys)]:
            operands = [x[:, part] for x in (query, key, value)]
            operands = operands if len(family.into) == 3 else [torch.cat(operands, -1)]
            for projection, operand in zip(family.into, operands, strict=True):
                setattr(layer, projection, given(operand))
            model(
                inputs_embeds=torch.zeros_like(query[:, part]),
                attention_mask=None if mask is None else mask[:, : part.stop].long(),
                **({"past_key_values": cache, "use_cache": True} if past else {}),
            )
        hook.remove()
        return seen[-1]

    def attention(query, key, value, num_heads, num_kv_heads, mask=None):
        return windowed(query, key, value, num_heads, num_kv_heads, mask)

    return windowed if family.window else attention


# --- others --------------------------------------------------------------------------------------


@subject("mlx.core.fast.scaled_dot_product_attention", "mlx", "numpy")
def mlx() -> Function:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)

    def array(x):
        if x.dtype.name == "bfloat16":
            return mx.array(x.astype(np.float32)).astype(mx.bfloat16)
        return mx.array(x)

    def attention(query, key, value, mask=None, causal=False):
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


def by_reference(model: Any, feeds: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, feeds)[0]


def by_runtime(model: Any, feeds: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


@subject("ONNX Attention, reference", "onnx", "numpy", by_reference)
@subject("ONNX Attention, onnxruntime", "onnxruntime", "numpy", by_runtime)
def onnx(run: Function) -> Function:
    def attention(query, key, value, attn_mask=None, is_causal=False, window=None):
        operands = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
        kinds = tuple({"float32": "float"}.get(x.dtype.name, x.dtype.name) for x in operands)
        feeds = dict(zip(["q", "k", "v", "mask"], operands, strict=False))
        return run(onnx_model(kinds, is_causal, window), feeds)

    return attention


# --- rotary positions alone ----------------------------------------------------------------------


def rope_ours(x):
    return rotate(jnp.asarray(x), rotary_angles(jnp.arange(len(x)), x.shape[-1]))


def rope_equinox(x):
    import equinox as eqx

    return eqx.nn.RotaryPositionalEmbedding(x.shape[-1])(jnp.asarray(x))


def rope_x_transformers(x):
    import torch
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    angles, scale = RotaryEmbedding(x.shape[-1]).forward_from_seq_len(len(x))
    return apply_rotary_pos_emb(torch.tensor(x)[None], angles, scale)


def rope_mlx(x):
    import mlx.core as mx
    from mlx import nn

    return nn.RoPE(x.shape[-1])(mx.array(x)[None])


def rope_onnx(x):
    from onnx.reference.ops.op_rotary_embedding import rotary_embedding

    angles = np.arange(len(x))[:, None] * frequencies(x.shape[-1])
    tables = (f(angles).astype(np.float32)[None] for f in (np.cos, np.sin))
    return rotary_embedding(x[None, None], *tables)[0, 0]


ROPES = {
    "mha_book.attention.attend": rope_ours, "equinox.nn.MultiheadAttention": rope_equinox,
    "x_transformers.Attention": rope_x_transformers,
    "x_transformers.Attention, flash": rope_x_transformers,
    "mlx.core.fast.scaled_dot_product_attention": rope_mlx, "ONNX Attention, reference": rope_onnx,
}  # fmt: skip
"""What turns queries and keys ``(T, H)`` in libraries whose attention does not do so itself."""


def pairs_of(name: str) -> str | None:
    """Return which pairs of features a library turns by default."""
    if name not in ROPES:
        return None
    x = np.random.default_rng(0).normal(size=(7, 8)).astype(np.float32)
    turned = np.asarray(ROPES[name](x), np.float64).reshape(x.shape)
    same = (kind for kind in ("half", "adjacent") if np.allclose(turned, turn(x, kind), atol=1e-4))
    return next(same, "other")


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


@quietly()
def measure(name: str) -> dict[str, Any]:
    """Return the row of a subject, each cell from a run."""
    one = SUBJECTS[name]
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

REPRODUCTIONS = tomllib.loads((ROOT / "experiments" / "reproductions.toml").read_text())["defect"]
"""What its owner could be sent: the package, what looks wrong, and a program that shows it."""


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
        for package, what, code in (one.values() for one in REPRODUCTIONS)
        if package in packages
    }
    return {"rows": rows, "defects": shown}
