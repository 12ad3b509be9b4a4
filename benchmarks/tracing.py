"""How long JAX takes to trace attention and a model, as a multiple of `jax.nn`'s time.

Tracing is Python's part of `jax.jit`: from the function to its jaxpr, before XLA compiles it.  One
causal call of 8 heads of width 64 at 1024 positions, and twelve layers of SmolLM2's shape; forward
and gradient; for the first time, with JAX's caches empty, and the same shapes again.
"""

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mha_book import attend

LENGTH, HEADS, WIDTH, LAYERS = 1024, 8, 64, 12
PACKAGE = str(Path(sys.modules[attend.__module__].__file__ or "").parents[1])
Function = Callable[..., Any]


def peer(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same attention by `jax.nn`, whose heads stand after the positions."""
    q, k, v = (jnp.swapaxes(x, -3, -2) for x in (q, k, v))
    return jnp.swapaxes(jax.nn.dot_product_attention(q, k, v, is_causal=True), -3, -2)


def mine(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention as the package chooses it."""
    return attend(q, k, v, is_causal=True)


def gradient_of(function: Function) -> Function:
    return jax.grad(lambda *x: function(*x).sum(), (0, 1, 2))


def layers_of(attention: Function) -> Function:
    """Twelve layers: projections, attention, output projection, each added to its input."""

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        for w_q, w_k, w_v, w_o in weights:
            heads = attention(*(jnp.einsum("...td,ndh->...nth", x, w) for w in (w_q, w_k, w_v)))
            x = x + jnp.einsum("...nth,nhd->...td", heads, w_o)
        return x.sum()

    return jax.grad(loss)


def _seconds(function: Function, shapes: Any) -> float:
    start = time.perf_counter()
    jax.jit(lambda *x: function(*x)).trace(*shapes)  # a new function: only inner caches can hit
    return time.perf_counter() - start


def ratios(functions: tuple[Function, Function], shapes: Any, rounds: int = 7) -> dict[str, float]:
    """Return the median of the first's time over the second's: first, and again."""
    found: dict[str, list[float]] = {"first": [], "again": []}
    for _ in range(rounds):
        times = []
        for function in functions:
            jax.clear_caches()
            gc.collect()
            times.append([_seconds(function, shapes) for _ in range(2)])
        for n, name in enumerate(found):
            found[name].append(times[0][n] / times[1][n])
    return {name: statistics.median(values) for name, values in found.items()}


def calls_while_tracing(function: Function, shapes: Any) -> int:
    """Return how many calls of the package's functions there are, inner ones included."""
    count = 0

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        code = frame.f_code
        is_function = not code.co_name.startswith("<")  # neither lambda nor comprehension
        count += event == "call" and is_function and code.co_filename.startswith(PACKAGE)

    jax.clear_caches()
    sys.setprofile(note)
    try:
        jax.jit(function).trace(*shapes)
    finally:
        sys.setprofile(None)
    return count


def settings() -> dict[str, tuple[tuple[Function, Function], Any]]:
    """What is traced, by name: both functions, and the shapes of their arguments."""
    of = jax.ShapeDtypeStruct
    x = [of((1, HEADS, LENGTH, WIDTH), "float32")] * 3
    d_model, key = 576, 3
    weights = [
        tuple(of(shape, "float32") for shape in (
            (9, d_model, 64), (key, d_model, 64), (key, d_model, 64), (9, 64, d_model)
        ))
    ] * LAYERS  # fmt: skip
    return {
        "attend": ((mine, peer), x),
        "attend, gradient": ((gradient_of(mine), gradient_of(peer)), x),
        "twelve layers, gradient": (
            (layers_of(mine), layers_of(peer)), [weights, of((1, LENGTH, d_model), "float32")]
        ),
    }  # fmt: skip


def main() -> None:
    for name, (functions, shapes) in settings().items():
        found = ratios(functions, shapes)
        print(f"{name:24s} first {found['first']:5.2f}  again {found['again']:5.2f}")
    (function, _), shapes = settings()["attend"]
    print(f"{'calls, attend':24s} {calls_while_tracing(function, shapes)}")


if __name__ == "__main__":
    main()
