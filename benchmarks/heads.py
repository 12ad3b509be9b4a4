"""One head or many: attention and the whole layer over the number of heads, at a fixed width.

D features are cut into N heads of width D/N.  The matrix products have the same number of
operations for every N; the scores number N·T².  T = S positions, forward, nothing masked.  The
baseline is D/64 heads of width 64.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attention
from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser, wanted
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


def prepared(setting: Setting, name: str, num_heads: int) -> tuple[Contender, list[oracle.Piece]]:
    """A contender, and what its outputs must be."""
    chosen = None if setting.implementation == CHOICE else setting.implementation
    if setting.part == "layer":
        x, *weights = inputs_of_layer(setting)
        params = in_heads(weights, num_heads)
        call = jax.jit(functools.partial(multi_head_attention, implementation=chosen))
        run = functools.partial(call, MultiHeadParams(*map(jnp.asarray, params)), jnp.asarray(x))
        expected = oracle.layer_float64(x, *params)
        return Contender(name, lambda: (run(),)), [oracle.Piece(0, ..., expected)]
    case = attention.Case(
        setting.length, False, False, heads=num_heads, head_dim=setting.d_model // num_heads,
        dtype=setting.dtype,
    )  # fmt: skip

    def attend_so(query, key, value, is_causal):
        return attend(query, key, value, implementation=chosen)

    run = attention.run_of(Contender(name, attend_so), case, attention.inputs_of(case))
    return Contender(name, run), attention.expected_of(case).pieces


def inputs_of_layer(setting: Setting) -> list[np.ndarray]:
    """An input (1, T, D), and four matrices (D, D)."""
    rng, width = np.random.default_rng(setting.length), setting.d_model
    x = rng.standard_normal((1, setting.length, width))
    weights = [rng.standard_normal((width, width)) * width**-0.5 for _ in range(4)]
    return [array.astype(np.float32).astype(jnp.dtype(setting.dtype)) for array in (x, *weights)]


def in_heads(weights: list[np.ndarray], num_heads: int) -> list[np.ndarray]:
    """The same matrices cut into heads: (D, N, H) three times, and (N, H, D)."""
    *inner, last = weights
    width = len(last)
    return [*(w.reshape(width, num_heads, -1) for w in inner), last.reshape(num_heads, -1, width)]


def measure(setting, counts, options) -> dict[str, Any]:
    base = setting.d_model // 64 or 1
    names = {BASELINE if count == base else f"heads={count}": count for count in counts}
    # The largest in the middle of a round: it leaves the caches to others than the self-pair.
    ordered = sorted(names, key=names.__getitem__)
    middle = [*ordered[::2], *ordered[1::2][::-1]]
    both = {name: prepared(setting, name, names[name]) for name in middle}
    pairs, width = setting.length**2, setting.d_model
    flops = attention_flops(pairs, 1, width, width, backward=False)
    flops += 4 * 2 * setting.length * width**2 if setting.part == "layer" else 0
    case = compare(
        setting, [contender for contender, _ in both.values()],
        error=lambda one, outputs: oracle.verify_pieces(
            one.name, outputs, both[one.name][1], setting.tolerance
        ),
        numbers=lambda one: {
            "heads": names[one.name], "head_dim": setting.d_model // names[one.name],
            "score_count": names[one.name] * pairs,
        },
        baseline=BASELINE, options=options, visible_pairs=pairs, tolerance=setting.tolerance,
        matmul_flops=flops,
    )  # fmt: skip
    *rows, again = case["rows"]
    case["rows"] = [*sorted(rows, key=lambda row: names[row["name"]]), again]
    return case


def _add(parser: Parser) -> None:
    parser.sized("--length", 512, 16, help="positions")
    parser.sized("--d-model", 512, 64, help="width of the model")
    parser.dtype()
    parser.clock()
    parser.only("settings whose label")
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
        if wanted(setting.label, options.only):
            recorder.add(measure(setting, counts, options))
