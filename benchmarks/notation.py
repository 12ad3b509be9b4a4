"""The layer compiled from its equations against the layer written by hand.

    PYTHONPATH=src python3 benchmarks/notation.py --quick

Self-attention with T positions, d_model features and N heads in float32: the forward pass, and the
forward pass with all gradients. The system's backward pass is the one that it derives from the
equations; the layer's is jax.vjp. Each gets the weights of Q, K, V in its own layout: the layer
(D, N, H), the equations (N, D, H); one more row is the layer with the equations' weights, their
conversion there and back included. The rules are in README.md beside this file.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
import provenance
import report
from limits import attention_flops, measure_rates
from options import parser_of
from rows import rates_of

from mha_book import MultiHeadParams, multi_head_attention
from mha_book.notation.layer import multi_head_layer

__all__ = ["Setting", "contenders_of", "main", "measure"]

BASELINE = "mha_book layer"
SYSTEM = "mha_book notation"
CONVERTED = "mha_book layer, heads first"
TOLERANCE = 2e-5  # largest deviation from float64, relative to the largest entry
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


class Setting(NamedTuple):
    """One setting in which both are compared."""

    length: int
    d_model: int
    heads: int
    backward: bool

    @property
    def label(self) -> str:
        """A short title."""
        what = "forward+backward" if self.backward else "forward"
        return f"T={self.length} d_model={self.d_model} heads={self.heads} {what}"


def inputs_of(setting: Setting) -> list[np.ndarray]:
    """Random x, weights and cotangent; weights of a size that keeps the scores near one."""
    rng = np.random.default_rng(setting.length)
    length, width, heads, _ = setting
    shapes = [(length, width), *[(heads, width, width // heads)] * 3]
    shapes += [(heads, width // heads, width), (length, width)]
    scales = [1.0, *[width**-0.5] * 4, 1.0]
    return [
        (rng.standard_normal(shape) * scale).astype(np.float32)
        for shape, scale in zip(shapes, scales, strict=True)
    ]


def layer(x: jax.Array, *weights: jax.Array) -> jax.Array:
    """The layer written by hand."""
    return multi_head_attention(MultiHeadParams(*weights), x)


def swapped(name: str, arrays: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Arrays with the weights of Q, K, V, which have these places, for the baseline swapped."""
    if name in (SYSTEM, CONVERTED):
        return list(arrays)
    return [x.swapaxes(0, 1) if n in places else x for n, x in enumerate(arrays)]


def contenders_of(setting: Setting) -> dict[str, Callable[..., tuple[jax.Array, ...]]]:
    """What is timed: (x, weights, cotangent) to the output, and the gradients if asked."""
    system = multi_head_layer()

    def written(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
        def run(*arguments: jax.Array) -> tuple[jax.Array, ...]:
            *operands, cotangent = arguments
            if not setting.backward:
                return (function(*operands),)
            output, pull = jax.vjp(function, *operands)
            return output, *pull(cotangent)

        return run

    def converted(x: jax.Array, *weights: jax.Array) -> jax.Array:
        return layer(x, *swapped(BASELINE, weights, (0, 1, 2)))

    def derived(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *operands, cotangent = arguments
        named = dict(zip(("X", *WEIGHTS), operands, strict=True))
        if not setting.backward:
            return (system(named, outputs=["Y"])["Y"],)
        output, pull = system.vjp(named)
        gradients = pull(cotangent)
        return output, *(gradients[name] for name in named)

    runs = {BASELINE: written(layer), SYSTEM: derived, CONVERTED: written(converted)}
    return {name: jax.jit(run) for name, run in runs.items()}


def expected_of(setting: Setting, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Output and gradients in float64 by NumPy, without the package."""
    x, w_q, w_k, w_v, w_o, cotangent = (array.astype(np.float64) for array in inputs)
    q, k, v = (np.matmul(x, w) for w in (w_q, w_k, w_v))
    scale = q.shape[-1] ** -0.5
    scores = scale * q @ k.swapaxes(1, 2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    heads = weights @ v
    output = (heads @ w_o).sum(axis=0)
    if not setting.backward:
        return [output]
    d_heads = cotangent @ w_o.swapaxes(1, 2)
    d_weights = d_heads @ v.swapaxes(1, 2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    d_q, d_k = scale * d_scores @ k, scale * d_scores.swapaxes(1, 2) @ q
    d_v = weights.swapaxes(1, 2) @ d_heads
    pairs = ((d_q, w_q), (d_k, w_k), (d_v, w_v))
    d_x = sum((d @ w.swapaxes(1, 2)).sum(axis=0) for d, w in pairs)
    return [output, d_x, *(x.T @ d for d, _ in pairs), heads.swapaxes(1, 2) @ cotangent]


def flops_of(setting: Setting) -> int:
    """Matmul FLOPs: four projections and the attention, three times that with the gradients."""
    length, width, heads, backward = setting
    projections = (3 if backward else 1) * 4 * 2 * length * width * width
    head_dim = width // heads
    return projections + attention_flops(length**2, heads, head_dim, head_dim, backward=backward)


def measure(setting: Setting, *, rounds: int, matmul_size: int | None = None) -> dict[str, Any]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again.

    Raises:
        WrongOutput: an output differs from float64.
    """
    inputs = inputs_of(setting)
    expected = expected_of(setting, inputs)
    runs = {
        name: functools.partial(function, *map(jnp.array, swapped(name, inputs, (1, 2, 3))))
        for name, function in contenders_of(setting).items()
    }

    def checked(name: str, outputs: Sequence[jax.Array]) -> float:
        arrays = swapped(name, [np.asarray(array) for array in outputs], (2, 3, 4))
        return harness.verify(name, arrays, expected, TOLERANCE)

    for name, run in runs.items():
        checked(name, run())
    rates = measure_rates("float32", matmul_size=matmul_size)
    times = harness.interleave(
        harness.with_self_pair(runs, BASELINE),
        rounds=rounds,
        progress=report.progress_line(setting.label),
    )
    flops, rows = flops_of(setting), []
    for name in times.seconds:
        measured = harness.timings(name, times, BASELINE)
        rows.append(
            {
                "name": name,
                "package": "mha_book",
                "layout": "NDH" if name in (SYSTEM, CONVERTED) else "DNH",
                "remark": "the A/A self-pair" if name.endswith(harness.SELF_PAIR_SUFFIX) else "",
                "status": "measured",
                "error": checked(name, times.outputs[name]),
                **measured,
                **rates_of(measured["seconds"]["median"], flops, rates),
            }
        )
    return {
        "case": {**setting._asdict(), "dtype": "float32", "label": setting.label},
        "visible_pairs": setting.length**2,
        "matmul_flops": flops,
        "tolerance": TOLERANCE,
        "rates": rates,
        "baseline": BASELINE,
        "rows": rows,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = parser_of(
        "notation",
        "The layer compiled from its equations against the layer written by hand.",
        unit="the layer's",
        rounds="default 40, quick 4",
    )
    options = parser.parse_args(arguments)
    rounds = options.rounds or (4 if options.quick else 40)
    shape = (16, 32, 2) if options.quick else (512, 512, 8)
    origin = provenance.record()
    cases = []
    for backward in (False, True):
        setting = Setting(*shape, backward)
        found = measure(setting, rounds=rounds, matmul_size=256 if options.quick else None)
        cases.append(found)
        report.show(setting.label, found)
    print(f"self-pair medians: {report.self_pairs(cases)}")
    settings = {"rounds": rounds, "quick": options.quick, "dtype": "float32"}
    report.keep("notation", options.out, origin, settings, cases=cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
