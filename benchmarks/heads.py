"""One head or many: attention and the whole layer over the number of heads, at a fixed width.

D features are cut into N heads of width D/N.  The matrix products have the same number of
operations for every N; the scores number N·T².  T = S positions, forward, nothing masked.  The
baseline is D/64 heads of width 64.
"""

import functools
from typing import Any

import attention
import layer
from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser
from harness.report import Recorder, benchmark
from mha_book import attend

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


def case_of(setting: Setting, num_heads: int) -> Any:
    """The same case of the benchmark of attention, or of the layer."""
    given = (setting.length, False, False)
    if setting.part == "layer":
        sizes = {"d_model": setting.d_model, "heads": num_heads, "dtype": setting.dtype}
        return layer.Setting(*given, **sizes)
    width = setting.d_model // num_heads
    return attention.Case(*given, heads=num_heads, head_dim=width, dtype=setting.dtype)


def prepared(setting: Setting, name: str, num_heads: int) -> tuple[Contender, list[oracle.Piece]]:
    """A contender, and what its outputs must be."""
    chosen = None if setting.implementation == CHOICE else setting.implementation
    case = case_of(setting, num_heads)
    if setting.part == "layer":
        inputs = layer.inputs_of(case)
        ours = functools.partial(layer._ours, implementation=chosen)
        run = layer.run_of(layer.Contender(name, "mha_book", ours, ""), case, inputs)
        return Contender(name, run), layer.expected_of(case, inputs)[1]
    inputs = attention.inputs_of(case)

    def call(query, key, value, is_causal):
        return attend(query, key, value, implementation=chosen)

    run = attention.run_of(attention.Contender(name, "mha_book", "NTH", call, ""), case, inputs)
    return Contender(name, run), attention.expected_of(case).pieces


def measure(setting, counts, options) -> dict[str, Any]:
    base = setting.d_model // 64 or 1
    names = {BASELINE if count == base else f"heads={count}": count for count in counts}
    # The largest in the middle of a round: it leaves the caches to others than the self-pair.
    ordered = sorted(names, key=names.__getitem__)
    middle = [*ordered[::2], *ordered[1::2][::-1]]
    both = {name: prepared(setting, name, names[name]) for name in middle}
    of_layer = case_of(setting, base)
    pairs, count = setting.length**2, attention.attention_flops
    flops = count(pairs, 1, setting.d_model, setting.d_model, backward=False)
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
        matmul_flops=layer.flops_of(of_layer) if setting.part == "layer" else flops,
    )  # fmt: skip
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
