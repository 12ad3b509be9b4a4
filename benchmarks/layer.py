"""The whole layer, from x to the output: the package's against jax.nn's and torch's.

Self-attention without biases from x (B, T, D) to (B, T, D): N heads of width H = D/N.  Every layer
has the same weights, in its own form; forward, and forward with the gradients of the input and of
all weights.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import compare
from harness.memory import check_room, compiled
from harness.options import Parser, wanted
from harness.rates import attention_flops, visible_pairs
from harness.report import Recorder, benchmark
from peers.layer import BASELINE, Contender, Inputs, Setting, contenders

LONG = 4096  # from here on a call takes seconds on a CPU: causal alone, few rounds, few rows
LONG_ROUNDS = 4
LONG_ROWS = (BASELINE, "attend", "jax.nn", "torch", "torch SDPA")


def inputs_of(setting: Setting) -> Inputs:
    rng = np.random.default_rng(setting.length)
    width, dtype = setting.d_model, jnp.dtype(setting.dtype)
    rows = (setting.batch, setting.length, width)
    arrays = [rng.standard_normal(rows) for _ in range(2)]
    arrays += [rng.standard_normal((width, width)) * width**-0.5 for _ in range(4)]
    return Inputs(*(array.astype(np.float32).astype(dtype) for array in arrays))


def expected_of(setting: Setting, inputs: Inputs) -> tuple[str, list[oracle.Piece]]:
    """The output and all gradients in float64; of long inputs some rows of the output alone."""
    x, bar, w_q, w_k, w_v, w_o = (array.astype(np.float64) for array in inputs)

    def in_heads(flat: np.ndarray) -> np.ndarray:
        return flat.reshape(*flat.shape[:2], setting.heads, -1).swapaxes(1, 2)

    def joined(heads: np.ndarray) -> np.ndarray:
        return heads.swapaxes(1, 2).reshape(heads.shape[0], heads.shape[2], -1)

    q, k, v = (in_heads(x @ w) for w in (w_q, w_k, w_v))
    given: dict[str, Any] = {"is_causal": setting.is_causal}
    if setting.backward:
        given["cotangent"] = in_heads(bar @ w_o.T)
    checked, pieces = oracle.attention_pieces(q, k, v, **given)
    heads = pieces[0].values
    if checked != "everything":
        rows = pieces[0].where[2]
        values = joined(heads) @ w_o
        return f"{len(rows)} rows of the output", [oracle.Piece(0, (slice(None), rows), values)]
    found = [joined(heads) @ w_o]
    if setting.backward:
        projected = [joined(piece.values) for piece in pieces[1:]]
        matrices = (w_q, w_k, w_v)
        d_x = sum(d @ w.T for d, w in zip(projected, matrices, strict=True))
        d_weights = [np.einsum("bid,bie->de", x, d) for d in projected]
        found += [d_x, *d_weights, np.einsum("bid,bie->de", joined(heads), bar)]
    return checked, [oracle.Piece(n, ..., values) for n, values in enumerate(found)]


def _timed(contender, setting, inputs) -> tuple[jax.stages.Wrapped, tuple[Any, ...]]:
    x, cotangent, *matrices = map(jnp.asarray, inputs)
    weights, layer = contender.build(setting, matrices)

    def forward_backward(weights, x, cotangent):
        output, pull = jax.vjp(layer, weights, x)
        d_weights, d_x = pull(cotangent)
        return output, d_x, d_weights

    def forward(weights, x, cotangent):
        return (layer(weights, x),)

    function = jax.jit(forward_backward if setting.backward else forward)
    return function, jax.block_until_ready((weights, x, cotangent))


def run_of(contender: Contender, setting: Setting, inputs: Inputs) -> Callable[[], Any]:
    if contender.prepare is not None:
        return contender.prepare(setting, inputs)
    function, arguments = _timed(contender, setting, inputs)
    check_room(function, arguments, scores=setting.batch * setting.heads * setting.length**2)
    return functools.partial(function, *arguments)


def prepare_row(name: str, case: Sequence[Any]) -> Callable[[], Any]:
    """One contender, compiled, as a function to call once (the target of `peak_memory`)."""
    contender = next(one for one in contenders(gpu=True) if one.name == name)
    return compiled(run_of(contender, Setting(*case), inputs_of(Setting(*case))))


def checked_error(contender, outputs, expected, setting) -> float:
    arrays = list(outputs[:2])
    if setting.backward:
        arrays += contender.matrices(outputs[2])
    tolerance = 2 * oracle.TOLERANCES[setting.dtype]
    return oracle.verify_pieces(contender.name, arrays, expected, tolerance)


def flops_of(setting: Setting) -> int:
    pairs = visible_pairs(setting.length, setting.length, is_causal=setting.is_causal)
    width = setting.d_model // setting.heads
    one = attention_flops(pairs, setting.heads, width, width, backward=setting.backward)
    passes = 3 if setting.backward else 1
    return setting.batch * (one + passes * 4 * 2 * setting.length * setting.d_model**2)


def measure(setting, chosen, options, **how) -> dict[str, Any]:
    inputs = inputs_of(setting)
    checked, pieces = expected_of(setting, inputs)
    return compare(
        setting, chosen, prepare=lambda one: run_of(one, setting, inputs),
        error=lambda one, outputs: checked_error(one, outputs, pieces, setting),
        baseline=options.baseline, options=options, matmul_flops=flops_of(setting),
        tolerance=2 * oracle.TOLERANCES[setting.dtype], checked=checked, **how,
    )  # fmt: skip


def _add(parser: Parser) -> None:
    add = parser.add_argument
    parser.sized("--lengths", (512, 2048), (32,), help="sequence lengths")
    add("--batch", type=int, default=1, help="batch entries (default 1)")
    parser.sized("--d-model", 512, 32, help="width of the model")
    parser.sized("--heads", 8, 2, help="heads")
    parser.dtype()
    parser.only()
    parser.memory()
    add("--baseline", default=BASELINE, help="whom the others are divided by")


@benchmark("the baseline's", add=_add)
def main(recorder: Recorder, options: Any) -> Any:
    platform = jax.default_backend()
    every = contenders(gpu=platform == "gpu")
    chosen = [one for one in every if wanted(one.name, options.only, [options.baseline])]
    sizes = (options.batch, options.d_model, options.heads, options.dtype)
    for length, causal, backward in itertools.product(options.lengths, *[(False, True)] * 2):
        is_long = length >= LONG and platform == "cpu"
        if is_long and not causal:
            continue
        how: dict[str, Any] = {"rounds": min(options.rounds, LONG_ROUNDS)} if is_long else {}
        if options.memory and length == max(options.lengths):
            how["memory"] = "layer:prepare_row"
        rows = [one for one in chosen if not is_long or one.name in LONG_ROWS]
        recorder.add(measure(Setting(length, causal, backward, *sizes), rows, options, **how))
