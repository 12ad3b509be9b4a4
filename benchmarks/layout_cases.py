"""The settings of the layout benchmark: what is timed, what it works on, what is expected.

Shapes: B batch entries, T queries, S keys, width D of the model, N heads of width H.  "Heads
first" is (B, N, T, H), "positions first" (B, T, N, H).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle

from mha_book import attend, multi_head_attention
from mha_book.parameters import MultiHeadParams, fuse

__all__ = [
    "Setting",
    "contenders_of",
    "cut_last",
    "expected_of",
    "flops_of",
    "inputs_of",
    "loop_over_heads",
    "one_product",
    "outputs_of",
    "three_products",
]

HEADS_FIRST, POSITIONS_FIRST = "heads first", "positions first"
CONVERTED = "positions first, converted"


class Setting(NamedTuple):
    """One setting in which all forms are compared.

    Attributes:
        part: "attention" alone, the whole "layer", or the "projection" to queries, keys and values.
        form: of attention the implementation; of a projection "compiled", "compiled, backward" (the
            gradients too), or "op by op".
        queries: T; of a projection the rows of the input.
        keys: S.
    """

    part: str
    form: str
    queries: int
    keys: int
    batch: int = 1
    d_model: int = 512
    heads: int = 8
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """A short title."""
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
    """The axes of heads and positions exchanged."""
    return x.swapaxes(1, 2)


def _attention(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """Attention on arrays in either order, and with a conversion that is stored."""

    def run(query, key, value, layout):
        return attend(query, key, value, layout=layout, implementation=setting.form)

    def converted(*operands):
        stored = jax.lax.optimization_barrier([_swap(x) for x in operands])
        return _swap(jax.lax.optimization_barrier(run(*stored, "NTH")))

    heads_first = [jnp.asarray(x) for x in inputs]
    positions_first = [jnp.asarray(_swap(x)) for x in inputs]
    functions = {
        HEADS_FIRST: (functools.partial(run, layout="NTH"), heads_first),
        POSITIONS_FIRST: (functools.partial(run, layout="TNH"), positions_first),
        CONVERTED: (converted, positions_first),
    }
    return {
        name: functools.partial(jax.jit(function), *arguments)
        for name, (function, arguments) in functions.items()
    }


def _layer(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """The layer from x to its output, with the heads in either order in between."""

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
    """The same, cut into queries, keys and values after the exchange of axes."""
    flat = x @ w_qkv.reshape(w_qkv.shape[0], -1)
    return tuple(jnp.split(_in_heads(flat, w_qkv.shape[-1]), 3, axis=1))


def three_products(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    """The same from a product for each of queries, keys and values."""
    return tuple(_in_heads(x @ w.reshape(w.shape[0], -1), w.shape[-1]) for w in weights)


def loop_over_heads(x: jax.Array, *weights: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """The same from a product for each head, with 3N matrices (D, H)."""
    return tuple(jnp.stack([x @ w for w in one], axis=1) for one in weights)


def _projection(setting: Setting, inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """The three forms of the projection, each with its own weights, cut or joined beforehand."""
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
    """What is timed, by name; the baseline is the first."""
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
    """The outputs in float64, without the package."""
    wide = [x.astype(np.float64) for x in inputs]
    if setting.part == "attention":
        return [oracle.attention_float64(*wide, is_causal=False)[0]]
    x, *weights = wide
    projected = [np.einsum("btd,dnh->bnth", x, w, optimize=True) for w in weights[:3]]
    if setting.part == "layer":
        output = oracle.attention_float64(*projected, is_causal=False)[0]
        return [np.einsum("bnth,nhd->btd", output, weights[3], optimize=True)]
    if "backward" not in setting.form:
        return projected
    pairs = list(zip(weights[:3], weights[3:], strict=True))
    d_x = sum(np.einsum("bnth,dnh->btd", bar, w, optimize=True) for w, bar in pairs)
    d_weights = [np.einsum("btd,bnth->dnh", x, bar, optimize=True) for _, bar in pairs]
    return [*projected, d_x, *d_weights]


def flops_of(setting: Setting) -> int:
    """Matmul FLOPs, the same for all forms."""
    rows = setting.batch * setting.queries
    pairs = 2 * setting.batch * setting.queries * setting.keys * 2 * setting.d_model
    square = 2 * rows * setting.d_model**2
    if setting.part == "projection":
        return 3 * square * (3 if "backward" in setting.form else 1)
    return pairs + (4 * square if setting.part == "layer" else 0)
