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

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.options import Parser
from harness.rates import attention_flops, measure_rates
from harness.report import Recorder
from mha_book import MultiHeadParams, multi_head_attention
from mha_book.notation.system import multi_head_layer

__all__ = ["Setting", "contenders_of", "main", "measure"]

BASELINE = "mha_book layer"
SYSTEM = "mha_book notation"
CONVERTED = "mha_book layer, heads first"
TOLERANCE = 2 * oracle.TOLERANCES["float32"]
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


class Setting(NamedTuple):
    """One setting in which both are compared."""

    length: int
    d_model: int
    heads: int
    backward: bool
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """A short title."""
        what = "forward+backward" if self.backward else "forward"
        return f"T={self.length} d_model={self.d_model} heads={self.heads} {what}"


def inputs_of(setting: Setting) -> list[np.ndarray]:
    """Random x, weights and cotangent; weights of a size that keeps the scores near one."""
    rng = np.random.default_rng(setting.length)
    length, width, heads, *_ = setting
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
    length, width, heads, backward, _ = setting
    projections = (3 if backward else 1) * 4 * 2 * length * width * width
    head_dim = width // heads
    return projections + attention_flops(length**2, heads, head_dim, head_dim, backward=backward)


def measure(setting: Setting, *, rounds: int, quick: bool = False) -> dict[str, Any]:
    """All contenders in one setting; see `compare`."""
    inputs = inputs_of(setting)
    expected = expected_of(setting, inputs)

    def error(contender: Contender, outputs: Sequence[jax.Array]) -> float:
        arrays = swapped(contender.name, [np.asarray(array) for array in outputs], (2, 3, 4))
        return oracle.verify(contender.name, arrays, expected, TOLERANCE)

    contenders = [
        Contender(
            name,
            functools.partial(function, *map(jnp.array, swapped(name, inputs, (1, 2, 3)))),
            layout="NDH" if name in (SYSTEM, CONVERTED) else "DNH",
        )
        for name, function in contenders_of(setting).items()
    ]
    return compare(
        setting,
        contenders,
        error=error,
        baseline=BASELINE,
        rounds=rounds,
        visible_pairs=setting.length**2,
        matmul_flops=flops_of(setting),
        tolerance=TOLERANCE,
        rates=measure_rates(setting.dtype, quick=quick),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when an output was refused."""
    parser = Parser(
        "notation",
        "The layer compiled from its equations against the layer written by hand.",
        ratios_to="the layer's",
        rounds=40,
    )
    parser.set_defaults(dtype="float32")
    options = parser.parse(arguments)
    recorder = Recorder("notation", options)
    shape = (16, 32, 2) if options.quick else (512, 512, 8)
    for backward in (False, True):
        setting = Setting(*shape, backward)
        recorder.add(measure(setting, rounds=options.rounds, quick=options.quick))
    return recorder.finish()


if __name__ == "__main__":
    sys.exit(main())
