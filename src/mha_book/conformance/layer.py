"""A layer with its weights: parameters found by name and shape, output predicted from them.

A torch module is copied and gets random parameters and biases, so that each of them shows. In JAX a
layer is a callable tree (equinox) or a pair of a function ``(params, x)`` and its parameters.
"""

import copy
import inspect
import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha_book.conformance.oracle import (
    TEXTS,
    Case,
    Conventions,
    Numbers,
    Steps,
    Weights,
    attend_layer,
    flat,
)
from mha_book.conformance.subject import (
    ROLES,
    Interface,
    Way,
    array_of,
    numbers_of,
    reduced,
    roles_of,
    ways_of,
)

__all__ = ["layer_interfaces"]

PROJECTIONS: dict[str, str] = TEXTS["projections"]
UNEQUAL = ("cross", "causal-short", "causal-long")
"""Scenes that a layer of self-attention cannot have."""
ORDERS = ("blocks", "by head", "by feature")
"""Of a fused matrix: queries, then keys, then values; head after head; feature after feature."""


def build(layer: type) -> Any:
    """Return an object of a class whose constructor takes sizes by known names.

    Raises:
        ValueError: a parameter without default has a name that is not known.
    """
    known = {name: size["value"] for size in TEXTS["sizes"] for name in size["names"]}
    known |= dict.fromkeys(ROLES["heads"], 6) | dict.fromkeys(ROLES["kv_heads"], 3)
    given = {}
    for name, parameter in inspect.signature(layer).parameters.items():
        if name in known:
            given[name] = known[name]
        elif parameter.default is parameter.empty and parameter.kind not in (2, 4):
            raise ValueError(
                f"subject: {layer.__name__} has a parameter {name!r} of unknown meaning; "
                "give an object, or a function without arguments that makes one"
            )
    return layer(**given)


def parameters_of(layer: Any) -> dict[str, Numbers]:
    """Return a layer's floating-point parameters by name, in float64."""
    if hasattr(layer, "named_parameters"):
        return {name: numbers_of(value) for name, value in layer.named_parameters()}
    import jax

    leaves = jax.tree_util.tree_flatten_with_path(layer)[0]
    return {
        jax.tree_util.keystr(path): np.asarray(value, np.float64)
        for path, value in leaves
        if hasattr(value, "dtype") and value.dtype.kind == "f"
    }


def randomized(layer: Any) -> Any:
    """Return a copy with random parameters, of the size that keeps activations near one."""
    rng = np.random.default_rng(3)

    def draw(shape: tuple[int, ...]) -> Numbers:
        return rng.normal(size=shape) * (1.3 / math.sqrt(shape[0]) if len(shape) > 1 else 0.3)

    if hasattr(layer, "named_parameters"):
        layer = copy.deepcopy(layer).eval()
        for value in layer.parameters():
            value.data.copy_(array_of("torch", draw(tuple(value.shape))))
        return layer
    import jax

    def drawn(leaf: Any) -> Any:
        is_weight = hasattr(leaf, "dtype") and leaf.dtype.kind == "f"
        return array_of("jax", draw(leaf.shape), str(leaf.dtype)) if is_weight else leaf

    return jax.tree.map(drawn, layer)


def role(name: str) -> str | None:
    """Return which projection a parameter's name means."""
    parts = [part for part in re.split(r"[^A-Za-z0-9_]+", name) if part]
    for part in reversed(parts):
        if part.lower().startswith("in_proj"):
            return "qkv"
        plain = re.sub(r"_|(in_proj)?(weight|bias|kernel|linear|lin)s?$", "", part.lower())
        bare = re.sub(r"^to|(proj|projection|matrix|s)$|^(w|b)(?=.)", "", plain)
        for candidate, known in itertools.product((plain, bare), PROJECTIONS):
            if re.fullmatch(PROJECTIONS[known], candidate):
                return known
    return None


def grouped_by_role(parameters: dict[str, Numbers]) -> dict[str, list[Numbers]]:
    """Return projection, or projection_bias -> its arrays; a list has a matrix for each head."""
    found: dict[str, list[Numbers]] = {}
    for name, value in parameters.items():
        kind = role(name)
        is_bias = "bias" in name or bool(re.search(r"\bb_?[qkvo]", name)) or value.ndim == 1
        if kind:
            found.setdefault(kind + "_bias" * is_bias, []).append(value)
    matrices = [value for value in parameters.values() if value.ndim == 2]
    separate = {"q", "k", "v"} <= found.keys()
    if not separate and not {"qkv", "kv"} & found.keys() and len(matrices) == 4:
        found |= {kind: [m] for kind, m in zip("qkvo", matrices, strict=True)}
    return found


def matrix(values: list[Numbers], width: int, is_torch: bool, out: bool) -> list[Numbers]:
    """Return the readings of a projection as ``(in, out)``, the likelier first."""
    if any(value.ndim == 3 for value in values):  # (D, N, H), or (N, H, D) of an output
        values = [x.reshape((-1, x.shape[-1]) if out else (x.shape[0], -1)) for x in values]
        is_torch = False
    turned = [value.T for value in values]
    return [
        np.concatenate(reading, 0 if out else 1)
        for reading in ([turned, values] if is_torch else [values, turned])
        if all(part.shape[1 if out else 0] == width for part in reading)
    ]


def unfused(fused: Numbers, num_heads: int, order: str, parts: int = 3) -> list[Numbers]:
    """Cut queries, keys and values out of the last axis of a fused matrix or bias."""
    lead = fused.shape[:-1]
    if order == "blocks":
        return np.split(fused, parts, -1)
    shape = (num_heads, parts, -1) if order == "by head" else (num_heads, -1, parts)
    cut = fused.reshape(*lead, *shape)
    axis = -2 if order == "by head" else -1
    return [np.take(cut, n, axis).reshape(*lead, -1) for n in range(parts)]


def readings(
    parameters: dict[str, Numbers], width: int, is_torch: bool, num_heads: int
) -> list[tuple[str, Weights]]:
    """Return the ways in which the parameters can be a layer's, with words for each."""
    found = grouped_by_role(parameters)
    fused = next((kind for kind in ("qkv", "kv") if kind in found), "")
    biases = {kind: found.pop(kind) for kind in [*found] if kind.endswith("_bias")}
    whole = {kind: np.concatenate([x.ravel() for x in values]) for kind, values in biases.items()}
    ways = {kind: matrix(values, width, is_torch, kind == "o") for kind, values in found.items()}
    if not all(ways.values()):
        return []
    fewest = min((len(way) for kind, way in ways.items() if kind != "o"), default=0)
    result = []
    for turned, order in itertools.product(range(fewest), ORDERS if fused else ("separate",)):
        arrays = {kind: way[min(turned, len(way) - 1)] for kind, way in ways.items()} | whole
        for suffix in ("", "_bias") if fused else ():
            if fused + suffix in arrays:
                pieces = unfused(arrays.pop(fused + suffix), num_heads, order, len(fused))
                arrays |= {kind + suffix: piece for kind, piece in zip(fused, pieces, strict=True)}
        if {"q", "k", "v"} <= arrays.keys():
            arrays.setdefault("o", np.eye(arrays["v"].shape[1], width))
            for kind in "qkvo":
                arrays.setdefault(f"{kind}_bias", np.zeros(arrays[kind].shape[1]))
            result.append((f"{order}{', transposed' if turned else ''}", Weights(**arrays)))
    return result


def layer_interfaces(
    layer: Any,
    *,
    function: Callable[..., Any] | None = None,
    num_heads: int | None = None,
    polarity: str | None = None,
    layout: str | None = None,
    names: dict[str, str] | None = None,
) -> list[Interface]:
    """Return the ways in which a layer may be meant.

    A layer of cross-attention gets a second input for keys and values, or a third for values.

    Args:
        layer: a torch module, a callable tree of JAX, or the parameters of ``function``.
        function: called as ``function(parameters, x)``; None if the layer is called itself.
        num_heads: read from the layer, or found by trying, if not told.
        polarity: what a mask says; found by trying if not told.
        layout: "BTD" or "TBD"; found by trying if not told.
        names: role -> name of the parameter, for names that are not known.

    Raises:
        ValueError: no projections of queries, keys and values are found.
    """
    is_torch = hasattr(layer, "named_parameters")
    layer = randomized(layer)
    call = (lambda *x, **k: function(layer, *x, **k)) if function else layer
    parameters = parameters_of(layer)
    signature = function or (layer.forward if is_torch else layer.__call__)
    positional = list(inspect.signature(signature).parameters.values())[1 if function else 0 :]
    required = [
        p.name for p in positional if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD
    ]
    roles = roles_of(signature, names or {})
    known = num_heads or heads_of(layer, parameters)
    layouts = [layout] if layout else ["BTD", "TBD", "TD"]
    ways = ways_of(call, "torch" if is_torch else "jax", roles, layouts, polarity)
    sizes = [size for value in parameters.values() if value.ndim > 1 for size in {*value.shape}]
    for width in sorted({*sizes}, key=lambda size: (-sizes.count(size), -size)):  # what D can be
        found: list[Interface] = []
        for count in [known] if known else [n for n in range(width, 0, -1) if width % n == 0]:
            for told, weights in readings(parameters, width, is_torch, count):
                head_dim, rest = divmod(weights.q.shape[1], count)
                if not rest and weights.k.shape[1] % head_dim == 0:
                    found += [_layer_interface(way, weights, count, told, required) for way in ways]
        if found:
            return found
    shapes = ", ".join(f"{name} {value.shape}" for name, value in parameters.items())
    raise ValueError(f"subject: no projections of queries, keys and values among {shapes}")


def heads_of(layer: Any, parameters: dict[str, Numbers]) -> int | None:
    """Return the number of heads that a layer says it has, or that its queries' weights have."""
    for name, weight in parameters.items():
        if role(name) == "q" and weight.ndim == 3:
            return int(weight.shape[1])
    for name in ROLES["heads"]:
        value: Any = getattr(layer, name, None)
        if isinstance(value, int) and value > 0:
            return value
        if hasattr(value, "__len__") and len(value):  # a list of heads
            return len(value)
    return None


def _layer_interface(
    way: Way, weights: Weights, num_heads: int, told: str, required: list[str]
) -> Interface:
    width = len(weights.q)
    num_kv_heads = weights.k.shape[1] * num_heads // weights.q.shape[1]

    def lay(x: Numbers) -> Numbers:  # from and to (B, T, D), the same way back
        return x.swapaxes(0, 1) if way.layout == "TBD" else x

    others = [name for name in required if name not in way.roles.values()][1:3]
    asks = bool(others) or way.roles.get("memory") in required

    def inputs(case: Case) -> list[Numbers]:  # of queries, keys and values
        every = [flat(x) for x in case[:3]]
        every = [np.tile(x, -(-width // x.shape[-1]))[..., :width] for x in every]
        if len(others) == 2:
            return every
        x, y, _ = every
        return [x, y, y] if asks or x.shape != y.shape else [x, x, x]

    def call(case: Case) -> Numbers:
        case = reduced(case, way.layout)
        rows = inputs(case)
        operands = [x[0] if way.layout == "TD" else lay(x) for x in rows]
        shape = operands[0].shape

        def shaped(out: Numbers) -> Numbers:
            if out.shape != shape:
                raise ValueError(f"the output has shape {out.shape}, the input {shape}")
            return out[None] if way.layout == "TD" else lay(out)

        arrays = [array_of(way.kind, x) for x in operands]
        memory = {}
        if "memory" in way.roles and rows[1] is not rows[0]:
            memory = {way.roles["memory"]: arrays[1]}
        called = way._replace(function=partial(way.function, **memory))
        return called.call(arrays[: 1 + len(others)], case, num_heads, shaped)

    def expect(case: Case, conventions: Conventions, steps: Steps) -> Numbers:
        case = reduced(case, way.layout)
        x, *memory = inputs(case)
        return attend_layer(x, weights, num_heads, case, conventions, steps, tuple(memory))

    words = way.words() | {"heads": str(num_heads), "weights": told}
    if num_kv_heads != num_heads:
        words["KV heads"] = str(num_kv_heads)
    never = ("grouped", *(() if asks or "memory" in way.roles else UNEQUAL))
    return Interface(call, expect, way.roles, words, ("", "flat", "layer"), True, never)
