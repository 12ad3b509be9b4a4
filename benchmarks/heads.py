"""One head or many: attention and the whole layer over the number of heads, at a fixed width.

D features are cut into N heads of width D/N.  The matrix products have the same number of
operations for every N; the scores number N·T².  T = S positions, forward, nothing masked.  The
baseline is D/64 heads of width 64.
"""

import functools
from collections.abc import Callable, Sequence
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
from mha_book import MultiHeadParams, attend, multi_head_attention

BASELINE = "reference"
CHOICE = "choice"  # in place of an implementation: that of `select`


# part: "attention" without projections, or the whole "layer".
class Setting(fields("part length d_model", implementation="reference", dtype="float32")):
    @property
    def label(self) -> str:
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"{self.part} T={self.length} d_model={self.d_model} {self.implementation}{dtype}"

    @property
    def tolerance(self) -> float:
        """How far an output may lie from float64, relative to the largest entry."""
        return 2 * oracle.TOLERANCES[self.dtype]


def inputs_of(setting: Setting) -> list[np.ndarray]:
    rng = np.random.default_rng(setting.length)
    rows, width = (setting.length, setting.d_model), setting.d_model
    dtype = jnp.dtype(setting.dtype)
    if setting.part == "attention":
        return [rng.standard_normal(rows).astype(dtype) for _ in range(3)]
    weights = [rng.standard_normal((width, width)) * width**-0.5 for _ in range(4)]
    return [x.astype(dtype) for x in (rng.standard_normal(rows), *weights)]


def in_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    """(T, D) to (1, N, T, H)."""
    return x.reshape(1, len(x), num_heads, -1).swapaxes(1, 2)


def run_of(setting: Setting, inputs: Sequence[np.ndarray], num_heads: int) -> Callable[[], Any]:
    chosen = None if setting.implementation == CHOICE else setting.implementation
    if setting.part == "attention":
        arrays = [jnp.asarray(in_heads(x, num_heads)) for x in inputs]
        attention = jax.jit(functools.partial(attend, implementation=chosen))
        return functools.partial(attention, *arrays)
    x, *weights = inputs
    width = setting.d_model
    shape = (width, num_heads, width // num_heads)
    params = MultiHeadParams(
        *(jnp.asarray(w.reshape(shape)) for w in weights[:3]),
        jnp.asarray(weights[3].reshape(*shape[1:], width)),
    )
    layer = jax.jit(functools.partial(multi_head_attention, implementation=chosen))
    return functools.partial(layer, params, jnp.asarray(x[None]))


def expected_of(setting: Setting, inputs: Sequence[np.ndarray], num_heads: int) -> np.ndarray:
    x, *rest = (array.astype(np.float64) for array in inputs)
    features = [x, *rest] if setting.part == "attention" else [x @ w for w in rest[:3]]
    heads = (in_heads(f, num_heads) for f in features)
    output = oracle.attention_float64(*heads, is_causal=False)[0]
    if setting.part == "attention":
        return output
    return output.swapaxes(1, 2).reshape(1, len(x), -1) @ rest[3]


def flops_of(setting: Setting) -> int:
    length, width = setting.length, setting.d_model
    projections = 0 if setting.part == "attention" else 4 * 2 * length * width * width
    return projections + attention_flops(length**2, 1, width, width, backward=False)


def measure(setting, counts, options) -> dict[str, Any]:
    base = setting.d_model // 64 or 1
    inputs = inputs_of(setting)
    names = {BASELINE if count == base else f"heads={count}": count for count in counts}
    # The largest in the middle of a round: it leaves the caches to others than the self-pair.
    ordered = sorted(names, key=names.__getitem__)
    middle = [*ordered[::2], *ordered[1::2][::-1]]
    expected = {name: expected_of(setting, inputs, count) for name, count in names.items()}
    case = compare(
        setting,
        [Contender(name, run_of(setting, inputs, names[name])) for name in middle],
        error=lambda one, output: oracle.verify(
            one.name, [output], [expected[one.name]], setting.tolerance
        ),
        numbers=lambda one: {
            "heads": names[one.name],
            "head_dim": setting.d_model // names[one.name],
            "score_count": names[one.name] * setting.length**2,
        },
        baseline=BASELINE,
        options=options,
        visible_pairs=setting.length**2,
        matmul_flops=flops_of(setting),
        tolerance=setting.tolerance,
    )
    *rows, again = case["rows"]
    case["rows"] = [*sorted(rows, key=lambda row: names[row["name"]]), again]
    return case


def _add(parser: Parser) -> None:
    parser.sized("--length", 512, 16, help="positions")
    parser.sized("--d-model", 512, 64, help="width of the model")
    parser.dtype()
    parser.clock()
    text = "what attend chooses, in place of jax.nn"
    parser.add_argument("--choice", action="store_true", help=text)


@benchmark("the heads of width 64's", add=_add)
def main(recorder: Recorder, options: Any) -> Any:
    counts = [2**n for n in range(4 if options.quick else 7)]
    for part, implementation in (
        ("attention", "reference"),
        ("attention", CHOICE if options.choice else "jax_nn"),
        ("layer", CHOICE if options.choice else "reference"),
    ):
        setting = Setting(part, options.length, options.d_model, implementation, options.dtype)
        recorder.add(measure(setting, counts, options))
