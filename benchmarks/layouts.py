"""Orders of heads and positions in memory, and the forms of the projection to heads.

Attention and the whole layer with heads first, (B, N, T, H), and positions first, (B, T, N, H);
queries, keys and values from one product, from three, and from one for each head, compiled and
not.  T queries, S keys, width D = 512, N = 8 heads of width H, nothing masked.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser, wanted
from harness.report import Recorder, benchmark
from mha_book import attend, multi_head_attention
from mha_book.attention.dispatch import IMPLEMENTATIONS, attention_spec
from mha_book.multihead.parameters import MultiHeadParams, fuse

# Largest deviation from float64, relative to the largest entry.
TOLERANCES = {**oracle.TOLERANCES, "float32": 2e-5}
FORMS = ("reference", "jax_nn", "blockwise", "cudnn")
HEADS_FIRST, POSITIONS_FIRST = "heads first", "positions first"
CONVERTED = "positions first, converted"


class Setting(fields("part form queries keys", batch=1, d_model=512, heads=8, dtype="float32")):
    """One part, "attention", "layer" or "projection", of T queries (or rows) and S keys.

    `form` is the implementation of attention; of a projection "compiled", "compiled, backward" (the
    gradients too), or "op by op".
    """

    @property
    def label(self) -> str:
        length = f"T={self.queries}" + ("" if self.queries == self.keys else f" S={self.keys}")
        return f"{self.part} {self.form} B={self.batch} {length}"


def inputs_of(setting: Setting) -> list[np.ndarray]:
    """Random arguments: q, k, v heads first; x and four weights; or x, three weights, cotangents.

    They are rounded to the setting's dtype before the float64 reference sees them.
    """
    batch, width = setting.batch, setting.d_model
    rng = np.random.default_rng(setting.keys)
    per_head = (width, setting.heads, width // setting.heads)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(jnp.dtype(setting.dtype))

    lengths = (setting.queries, setting.keys, setting.keys)
    in_heads = [draw(batch, setting.heads, n, per_head[-1]) for n in lengths]
    if setting.part == "attention":
        return in_heads
    weights = [draw(*per_head, scale=width**-0.5) for _ in range(3)]
    x = draw(batch, setting.queries, width)
    if setting.part == "layer":
        return [x, *weights, draw(*per_head[1:], width, scale=width**-0.5)]
    return [x, *weights, *in_heads]


def _swap(x: Any) -> Any:
    return x.swapaxes(1, 2)


def _attention(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:

    def run(query, key, value, layout):
        return attend(query, key, value, layout=layout, implementation=setting.form)

    def converted(*operands):
        stored = jax.lax.optimization_barrier([_swap(x) for x in operands])
        return _swap(jax.lax.optimization_barrier(run(*stored, "NTH")))

    heads_first = [jnp.asarray(x) for x in inputs]
    positions_first = [jnp.asarray(_swap(x)) for x in inputs]
    first, second = (jax.jit(functools.partial(run, layout=layout)) for layout in ("NTH", "TNH"))
    return {
        HEADS_FIRST: functools.partial(first, *heads_first),
        POSITIONS_FIRST: functools.partial(second, *positions_first),
        CONVERTED: functools.partial(jax.jit(converted), *positions_first),
    }


def _layer(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:

    def package(x, *weights):  # a product, cut, then exchanged
        return multi_head_attention(MultiHeadParams(*weights), x, implementation=setting.form)

    def straight(x, w_q, w_k, w_v, w_o, *, heads, layout):  # heads is "bnth" or "btnh"
        q, k, v = (jnp.einsum(f"btd,dnh->{heads}", x, w) for w in (w_q, w_k, w_v))
        output = attend(q, k, v, layout=layout, implementation=setting.form)
        return jnp.einsum(f"{heads},nhd->btd", output, w_o)

    def converted(x, w_q, w_k, w_v, w_o):
        stored = [jnp.einsum("btd,dnh->btnh", x, w) for w in (w_q, w_k, w_v)]
        stored = [_swap(q) for q in jax.lax.optimization_barrier(stored)]
        q, k, v = jax.lax.optimization_barrier(stored)
        output = jax.lax.optimization_barrier(attend(q, k, v, implementation=setting.form))
        return jnp.einsum("btnh,nhd->btd", jax.lax.optimization_barrier(_swap(output)), w_o)

    functions = {
        "product, then split": package,
        HEADS_FIRST: functools.partial(straight, heads="bnth", layout="NTH"),
        POSITIONS_FIRST: functools.partial(straight, heads="btnh", layout="TNH"),
        CONVERTED: converted,
    }
    arrays = [jnp.asarray(x) for x in inputs]
    return {
        name: functools.partial(jax.jit(function), *arrays) for name, function in functions.items()
    }


def _in_heads(flat: jax.Array, head_dim: int) -> jax.Array:
    """(B, T, N·H) to (B, N, T, H)."""
    return _swap(flat.reshape(*flat.shape[:-1], -1, head_dim))


def one_product(x: jax.Array, w_qkv: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values (B, N, T, H) from one product with (D, 3N, H)."""
    flat = x @ w_qkv.reshape(w_qkv.shape[0], -1)
    return tuple(_in_heads(y, w_qkv.shape[-1]) for y in jnp.split(flat, 3, axis=-1))


def cut_last(x: jax.Array, w_qkv: jax.Array) -> tuple[jax.Array, ...]:
    flat = x @ w_qkv.reshape(w_qkv.shape[0], -1)
    return tuple(jnp.split(_in_heads(flat, w_qkv.shape[-1]), 3, axis=1))


def three_products(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(_in_heads(x @ w.reshape(w.shape[0], -1), w.shape[-1]) for w in weights)


def loop_over_heads(x: jax.Array, *weights: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """The same from a product for each head, with 3N matrices (D, H)."""
    return tuple(jnp.stack([x @ w for w in one], axis=1) for one in weights)


def _projection(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:
    x, *arrays = (jnp.asarray(array) for array in inputs)
    weights, cotangents = arrays[:3], tuple(arrays[3:])
    w_o = jnp.zeros((*weights[0].shape[1:], setting.d_model), x.dtype)
    fused = [fuse(MultiHeadParams(*weights, w_o)).w_qkv]
    forms = {
        "one product": (one_product, fused),
        "one product, cut last": (cut_last, fused),
        "three products": (three_products, weights),
        "loop over heads": (
            loop_over_heads,
            [[w[:, head] for head in range(setting.heads)] for w in weights],
        ),
    }

    def with_gradients(form, cotangents, x, *weights):
        output, pull = jax.vjp(form, x, *weights)
        return output, pull(cotangents)

    runs = {}
    for name, (form, its_weights) in forms.items():
        arguments: list[Any] = [x, *its_weights]
        if "backward" in setting.form:
            form, arguments = functools.partial(with_gradients, form), [cotangents, *arguments]
        timed = form if setting.form == "op by op" else jax.jit(form)
        runs[name] = functools.partial(timed, *jax.block_until_ready(arguments))
    return runs


def contenders_of(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:
    builders = {"attention": _attention, "layer": _layer, "projection": _projection}
    return builders[setting.part](setting, inputs)


def outputs_of(setting: Setting, name: str, output: Any) -> list[np.ndarray]:
    """What a contender returned, in the form of `expected_of`."""
    if setting.part == "attention":
        return [np.asarray(output if name == HEADS_FIRST else _swap(output))]
    if setting.part == "layer":
        return [np.asarray(output)]
    if "backward" not in setting.form:
        return [np.asarray(x) for x in output]
    (values, (d_x, *d_weights)) = output
    if name.startswith("one product"):
        d_weights = jnp.split(d_weights[0], 3, axis=1)
    elif name == "loop over heads":
        d_weights = [jnp.stack(one, axis=1) for one in d_weights]
    return [np.asarray(x) for x in (*values, d_x, *d_weights)]


def expected_of(setting: Setting, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    wide = [x.astype(np.float64) for x in inputs]
    if setting.part == "attention":
        return [oracle.attention_float64(*wide, is_causal=False)[0]]
    if setting.part == "layer":
        return [oracle.layer_float64(*wide)]
    x, *weights = wide
    projected = [np.einsum("btd,dnh->bnth", x, w, optimize=True) for w in weights[:3]]
    if "backward" not in setting.form:
        return projected
    pairs = list(zip(weights[:3], weights[3:], strict=True))
    d_x = sum(np.einsum("bnth,dnh->btd", bar, w, optimize=True) for w, bar in pairs)
    d_weights = [np.einsum("btd,bnth->dnh", x, bar, optimize=True) for _, bar in pairs]
    return [*projected, d_x, *d_weights]


def flops_of(setting: Setting) -> int:
    rows = setting.batch * setting.queries
    pairs = 2 * setting.batch * setting.queries * setting.keys * 2 * setting.d_model
    square = 2 * rows * setting.d_model**2
    if setting.part == "projection":
        return 3 * square * (3 if "backward" in setting.form else 1)
    return pairs + (4 * square if setting.part == "layer" else 0)


def served(dtype: str) -> list[str]:
    x = jnp.zeros((1, 8, 16, 64), dtype)
    spec = attention_spec(x, x, x)
    known = {form: IMPLEMENTATIONS[form] for form in FORMS if form in IMPLEMENTATIONS}
    return [
        form for form, i in known.items() if not (i.why_unsupported and i.why_unsupported(spec))
    ]


def plan(quick: bool, dtype: str = "float32") -> list[Setting]:
    if quick:
        small: dict[str, Any] = {"d_model": 16, "heads": 2}
        return [
            Setting("attention", "reference", 8, 8, **small),
            Setting("attention", "decode", 1, 32, **small),
            Setting("layer", "jax_nn", 8, 8, **small),
            Setting("projection", "compiled", 8, 8, **small),
            Setting("projection", "compiled, backward", 8, 8, **small),
            Setting("projection", "op by op", 1, 1, **small),
        ]
    forms = served(dtype)
    whole = [form for form in forms if form != "blockwise"]
    lengths = (512, 2048)
    passes = ("compiled", "op by op")
    return [
        setting._replace(dtype=dtype)
        for setting in (
            *(Setting("attention", form, 128, 128, batch=16) for form in whole),
            *(Setting("attention", form, n, n) for n in lengths for form in forms),
            *(Setting("attention", form, 1, 8192) for form in ("decode", "jax_nn")),
            *(Setting("layer", form, n, n) for n in lengths for form in forms),
            *(Setting("projection", form, n, n) for form in passes for n in (1, 128, 2048)),
            *(Setting("projection", "compiled, backward", n, n) for n in (128, 2048)),
        )
    ]


_COPY = re.compile(r"= b?f(\d+)\[([\d,]+)\]\S* copy\(")


def count_operations(run: functools.partial[Any]) -> Mapping[str, int]:
    """What a program consists of: of a compiled one its products and copies, else its calls.

    A copy gives its operand another order in memory; its bytes are those written.  The body of a
    loop is counted once.
    """
    if not hasattr(run.func, "lower"):
        return {"calls": len(jax.make_jaxpr(run.func)(*run.args).jaxpr.eqns)}
    text = str(run.func.lower(*run.args, **run.keywords).compile().as_text())
    sizes = [
        int(bits) // 8 * math.prod(int(n) for n in shape.split(","))
        for bits, shape in _COPY.findall(text)
    ]
    products = text.count(" dot(") + text.count("__cublas$") + text.count("__onednn$matmul")
    return {"products": products, "copies": len(sizes), "copied_bytes": sum(sizes)}


def measure(setting, options) -> dict[str, Any]:
    inputs = inputs_of(setting)
    expected, tolerance = expected_of(setting, inputs), TOLERANCES[setting.dtype]
    runs = contenders_of(setting, inputs)
    contenders = [
        Contender(
            name,
            run,
            package="jax" if setting.part == "projection" else "mha_book",
            layout="TNH" if name.startswith("positions") else "NTH",
        )
        for name, run in runs.items()
    ]
    return compare(
        setting,
        contenders,
        error=lambda one, output: oracle.verify(
            one.name, outputs_of(setting, one.name, output), expected, tolerance
        ),
        numbers=lambda one: {"operations": count_operations(one.run)},
        baseline=contenders[0].name,
        options=options,
        visible_pairs=setting.batch * setting.queries * setting.keys,
        matmul_flops=flops_of(setting),
        tolerance=tolerance,
    )


def _add(parser: Parser) -> None:
    parser.dtype()
    parser.only("settings whose label")
    parser.clock()


@benchmark("the first row's", add=_add)
def main(recorder: Recorder, options: Any) -> Any:
    for setting in plan(options.quick, options.dtype):
        if wanted(setting.label, options.only):
            recorder.add(measure(setting, options))
