"""Attention: the package's implementations against jax.nn and torch.

Prefill with B batch entries, N query heads, K key/value heads, T = S positions and width H = C:
forward, and forward with backward.  Inputs are drawn heads first and rounded to the dtype before
the float64 reference sees them.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.memory import check_room, compiled
from harness.options import Parser, wanted
from harness.rates import attention_flops
from harness.report import Recorder, benchmark
from mha_book.costs import visible_pair_count
from peers.attention import BASELINE, contenders

LONG = 4096  # from here on few contenders; on a CPU, where a call takes seconds, few rounds
LONG_ROUNDS = 6


# kv_heads: as many as heads.
class Case(fields(
    "length is_causal backward", batch=1, heads=8, head_dim=64, dtype="float32", kv_heads=None,
)):  # fmt: skip
    @property
    def label(self) -> str:
        mask = "causal" if self.is_causal else "full"
        work = "forward+backward" if self.backward else "forward"
        letters = {"batch": "B", "heads": "N", "head_dim": "H", "kv_heads": "K"}
        usual = self._field_defaults
        sizes = [
            f" {letter}={getattr(self, field)}"
            for field, letter in letters.items()
            if getattr(self, field) != usual[field]
        ]
        dtype = "" if self.dtype == usual["dtype"] else f" {self.dtype}"
        return f"T={self.length} {mask} {work}{''.join(sizes)}{dtype}"


def inputs_of(case: Case) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(case.length)

    def draw(heads: int) -> np.ndarray:
        shape = (case.batch, heads, case.length, case.head_dim)
        return rng.standard_normal(shape).astype(jnp.dtype(case.dtype))

    kv_heads = case.kv_heads or case.heads
    return tuple(draw(heads) for heads in (case.heads, kv_heads, kv_heads, case.heads))


class Expected(NamedTuple):
    """What the outputs of a case must be: what of them is compared, in words, and the pieces."""

    checked: str
    pieces: list[oracle.Piece]


@functools.lru_cache(maxsize=1)
def _expected_with_gradients(case: Case) -> Expected:
    *operands, cotangent = inputs_of(case)
    options = {"is_causal": case.is_causal, "cotangent": cotangent}
    return Expected(*oracle.attention_pieces(*operands, **options))


def expected_of(case: Case) -> Expected:
    """The float64 outputs of a case, heads first, or as much of them as can be afforded.

    With the gradients they are kept for one more call: both passes of a case have the same output.
    """
    checked, pieces = _expected_with_gradients(case._replace(backward=True))
    return Expected(checked, [one for one in pieces if case.backward or one.output == 0])


def timed_function(contender: Contender, case: Case) -> jax.stages.Wrapped:
    def forward(query, key, value):
        return contender.run(query, key, value, case.is_causal)

    def forward_backward(query, key, value, cotangent):
        output, pull = jax.vjp(forward, query, key, value)
        return output, *pull(cotangent)

    if case.backward:
        return jax.jit(forward_backward)
    return jax.jit(lambda query, key, value, cotangent: (forward(query, key, value),))


def arguments_of(contender: Contender, inputs: Sequence[np.ndarray]) -> list[jax.Array]:
    swap = contender.layout == "TNH"
    arrays = [jnp.asarray(np.swapaxes(x, 1, 2) if swap else x) for x in inputs]
    return jax.block_until_ready(arrays)


def checked_error(contender, outputs, expected, case) -> float:
    arrays = [oracle.as_numpy(x) for x in outputs]
    if contender.layout == "TNH":
        arrays = [np.swapaxes(x, 1, 2) for x in arrays]
    tolerance = oracle.TOLERANCES[case.dtype]
    return oracle.verify_pieces(contender.name, arrays, expected.pieces, tolerance)


def run_of(contender: Contender, case: Case, inputs: Sequence[np.ndarray]) -> Callable[[], Any]:
    if contender.prepare is not None:
        return contender.prepare(inputs, case.is_causal, case.backward)
    function, arguments = timed_function(contender, case), arguments_of(contender, inputs)
    check_room(function, arguments, scores=case.batch * case.heads * case.length**2)
    return functools.partial(function, *arguments)


def prepare_row(name: str, case: Sequence[Any]) -> Callable[[], Any]:
    """One contender, compiled, as a function to call once (the target of `peak_memory`)."""
    contender = next(one for one in contenders(gpu=True) if one.name == name)
    return compiled(run_of(contender, Case(*case), inputs_of(Case(*case))))


def measure(case, chosen, options, **how) -> dict[str, Any]:
    inputs, expected = inputs_of(case), expected_of(case)
    pairs = visible_pair_count(case.length, case.length) if case.is_causal else case.length**2
    pairs *= case.batch
    flops = attention_flops(pairs, case.heads, case.head_dim, case.head_dim, backward=case.backward)
    return compare(
        case, chosen, visible_pairs=pairs, prepare=lambda one: run_of(one, case, inputs),
        error=lambda one, outputs: checked_error(one, outputs, expected, case),
        baseline=options.baseline, options=options, matmul_flops=flops,
        tolerance=oracle.TOLERANCES[case.dtype], checked=expected.checked, **how,
    )  # fmt: skip


def _add(parser: Parser) -> None:
    add = parser.add_argument
    parser.sized("--lengths", (128, 512, 2048, 8192), (32,), help="sequence lengths")
    parser.sized("--heads", 8, 2, help="query heads")
    parser.sized("--head-dim", (64,), (16,), help="widths of a head")
    parser.dtype()
    parser.clock()
    parser.only()
    on_gpu, flag = jax.default_backend() == "gpu", argparse.BooleanOptionalAction
    parser.sized("--memory", True, False, action=flag, help="peak memory at the longest length")
    add("--baseline", default=BASELINE, help="whom the others are divided by")
    add("--gpu-rows", action=flag, default=on_gpu, help="the rows that a GPU has besides")


def _cases(options: argparse.Namespace) -> Iterator[tuple[Case, bool]]:
    """All cases, and whether a call takes seconds; on a CPU these are causal alone."""
    sizes = {"heads": options.heads, "dtype": options.dtype}
    for head_dim, length, is_causal, backward in itertools.product(
        options.head_dim, options.lengths, (False, True), (False, True)
    ):
        is_long = length >= LONG and jax.default_backend() == "cpu"
        if is_causal or not is_long:
            yield Case(length, is_causal, backward, head_dim=head_dim, **sizes), is_long


@benchmark("the baseline's", add=_add)
def main(recorder: Recorder, options: Any) -> None:
    for case, is_long in _cases(options):
        every = contenders(gpu=options.gpu_rows, long=case.length >= LONG)
        how: dict[str, Any] = {"rounds": min(options.rounds, LONG_ROUNDS)} if is_long else {}
        if options.memory and case.length == max(options.lengths):
            how["memory"] = "attention:prepare_row"
        chosen = [one for one in every if wanted(one.name, options.only, [options.baseline])]
        recorder.add(measure(case, chosen, options, **how))
