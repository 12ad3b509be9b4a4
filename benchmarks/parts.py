"""Where the time of a transformer layer goes: its parts over the length of the sequence.

The sizes are those of the first transformer's base model: width D = 512, 8 heads, 2048 hidden
features with a ReLU between; float32, forward, nothing masked.  The baseline is the four
projections.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser
from harness.rates import attention_flops
from harness.report import Recorder, benchmark
from harness.timing import SELF_PAIR_SUFFIX
from mha_book import attend

BASELINE = "projections"
TOLERANCE = 2 * oracle.TOLERANCES["float32"]


class Setting(fields("length", d_model=512, heads=8, hidden=2048, dtype="float32")):
    @property
    def label(self) -> str:
        return f"T={self.length}"


def project(x: jax.Array, *weights: jax.Array) -> list[jax.Array]:
    return [x @ weight for weight in weights]


def feed_forward(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    return jnp.maximum(x @ w_in, 0.0) @ w_out


def inputs_of(setting: Setting) -> dict[str, list[np.ndarray]]:
    length, d_model, heads, hidden, _ = setting
    rng = np.random.default_rng(length)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    x = draw(length, d_model)
    square = [draw(d_model, d_model, scale=d_model**-0.5) for _ in range(4)]
    wide = [draw(d_model, hidden, scale=d_model**-0.5), draw(hidden, d_model, scale=hidden**-0.5)]
    in_heads = [draw(1, heads, length, d_model // heads) for _ in range(3)]
    return {BASELINE: [x, *square], "attention": in_heads, "feed-forward": [x, *wide]}


def parts_of(inputs: dict[str, list[np.ndarray]]) -> dict[str, Callable[[], Any]]:
    functions = {BASELINE: project, "attention": attend, "feed-forward": feed_forward}
    return {
        name: functools.partial(jax.jit(function), *map(jnp.asarray, inputs[name]))
        for name, function in functions.items()
    }


def expected_of(inputs: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    wide = {name: [x.astype(np.float64) for x in arrays] for name, arrays in inputs.items()}
    x, *square = wide[BASELINE]
    _, w_in, w_out = wide["feed-forward"]
    return {
        BASELINE: [x @ weight for weight in square],
        "attention": [oracle.attention_float64(*wide["attention"], is_causal=False)[0]],
        "feed-forward": [np.maximum(x @ w_in, 0.0) @ w_out],
    }


def flops_of(setting: Setting) -> dict[str, int]:
    length, d_model, heads, hidden, _ = setting
    width = d_model // heads
    return {
        BASELINE: 2 * length * 4 * d_model**2,
        "attention": attention_flops(length**2, heads, width, width, backward=False),
        "feed-forward": 2 * length * 2 * d_model * hidden,
    }


def measure(setting, options) -> dict[str, Any]:
    inputs = inputs_of(setting)
    runs, expected, flops = parts_of(inputs), expected_of(inputs), flops_of(setting)

    def part(contender: Contender) -> str:
        return contender.name.removesuffix(SELF_PAIR_SUFFIX)

    def error(contender: Contender, output: Any) -> float:
        outputs = output if isinstance(output, (list, tuple)) else [output]
        return oracle.verify(contender.name, outputs, expected[part(contender)], TOLERANCE)

    # Attention in the middle, one part that is not the baseline on either side: what runs after it
    # finds the caches emptied, and the self-pair must not differ by that.
    contenders = [
        Contender(BASELINE, runs[BASELINE], "jax", "TD"),
        Contender("feed-forward", runs["feed-forward"], "jax", "TD"),
        Contender("attention", runs["attention"]),
        Contender(
            "feed-forward" + SELF_PAIR_SUFFIX,
            runs["feed-forward"],
            "jax",
            "TD",
            "the A/A self-pair",
        ),
    ]
    return compare(
        setting, contenders, error=error, numbers=lambda one: {"matmul_flops": flops[part(one)]},
        baseline=BASELINE, options=options, visible_pairs=setting.length**2, tolerance=TOLERANCE,
    )  # fmt: skip


@benchmark("the projections'", add=Parser.clock)
def main(recorder: Recorder, options: Any) -> Any:
    shape = {"d_model": 16, "heads": 2, "hidden": 32} if options.quick else {}
    for length in (8, 16) if options.quick else (128, 256, 512, 1024, 2048):
        recorder.add(measure(Setting(length, **shape), options))
