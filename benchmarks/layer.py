"""The whole layer, from x to the output: the package's against one around jax.nn's attention.

Self-attention without biases from x (B, T, D) to (B, T, D): N heads of width H = D/N.  Every layer
has the same weights; forward, and forward with the gradients of the input and of all weights.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import compare
from harness.fields import fields
from harness.memory import check_room
from harness.options import Parser, wanted
from harness.rates import attention_flops
from harness.report import Recorder, benchmark
from mha_book import MultiHeadParams, multi_head_attention
from mha_book.costs import visible_pair_count
from peers.attention import BASELINE, cudnn, jax_nn

LONG = 4096  # from here on a call takes seconds on a CPU: causal alone, few rounds
LONG_ROUNDS = 4


class Setting(fields("length is_causal backward", batch=1, d_model=512, heads=8, dtype="float32")):
    @property
    def label(self) -> str:
        mask = "causal" if self.is_causal else "full"
        work = "forward+backward" if self.backward else "forward"
        sizes = f"B={self.batch} D={self.d_model} N={self.heads} {self.dtype}"
        return f"T={self.length} {mask} {work} {sizes}"


class Inputs(NamedTuple):
    """Input and cotangent (B, T, D); matrices (D, D), those of queries, keys, values by head."""

    x: np.ndarray
    cotangent: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_o: np.ndarray


class Contender(NamedTuple):
    """One row: `layer` takes parameters, input and is_causal."""

    name: str
    package: str
    layer: Callable[[MultiHeadParams, jax.Array, bool], jax.Array]
    remark: str
    layout: str = "BTD"


def _ours(params, x, is_causal, *, implementation):
    return multi_head_attention(params, x, is_causal=is_causal, implementation=implementation)


def _around(params, x, is_causal, *, attention):
    """Einsum projections straight into (B, T, N, H) around a peer's attention."""
    query, key, value = (jnp.einsum("btd,dnh->btnh", x, w) for w in params[:3])
    return jnp.einsum("btnh,nhd->btd", attention(query, key, value, is_causal), params.w_o)


CONTENDERS = [
    Contender(
        BASELINE, "mha_book", functools.partial(_ours, implementation="reference"),
        "multi_head_attention by the reference",
    ),
    Contender(
        "attend", "mha_book", functools.partial(_ours, implementation=None),
        "multi_head_attention, attend in its own choice",
    ),
    Contender(
        "jax.nn", "jax", functools.partial(_around, attention=jax_nn),
        "einsum projections around jax.nn.dot_product_attention",
    ),
    Contender(
        "jax.nn cudnn", "jax", functools.partial(_around, attention=cudnn),
        "einsum projections around jax.nn's cuDNN",
    ),
]  # fmt: skip


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


def run_of(contender: Contender, setting: Setting, inputs: Inputs) -> Callable[[], Any]:
    x, cotangent, *outer, inner = map(jnp.asarray, inputs)
    width, heads = setting.d_model, setting.heads
    weights = [w.reshape(width, heads, -1) for w in outer]
    params = MultiHeadParams(*weights, inner.reshape(heads, -1, width))

    def forward(params, x, cotangent):
        return (contender.layer(params, x, setting.is_causal),)

    def forward_backward(params, x, cotangent):
        output, pull = jax.vjp(lambda *given: forward(*given, cotangent)[0], params, x)
        d_params, d_x = pull(cotangent)
        return output, d_x, d_params

    function = jax.jit(forward_backward if setting.backward else forward)
    arguments = jax.block_until_ready((params, x, cotangent))
    check_room(function, arguments, scores=setting.batch * heads * setting.length**2)
    return functools.partial(function, *arguments)


def checked_error(contender, outputs, expected, setting) -> float:
    arrays = list(outputs[:2])
    if setting.backward:
        arrays += [w.reshape((setting.d_model,) * 2) for w in outputs[2][:4]]
    tolerance = 2 * oracle.TOLERANCES[setting.dtype]
    return oracle.verify_pieces(contender.name, arrays, expected, tolerance)


def flops_of(setting: Setting) -> int:
    length = setting.length
    pairs = visible_pair_count(length, length) if setting.is_causal else length**2
    width = setting.d_model // setting.heads
    one = attention_flops(pairs, setting.heads, width, width, backward=setting.backward)
    passes = 3 if setting.backward else 1
    return setting.batch * (one + passes * 4 * 2 * length * setting.d_model**2)


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
    add("--baseline", default=BASELINE, help="whom the others are divided by")


@benchmark("the baseline's", add=_add)
def main(recorder: Recorder, options: Any) -> Any:
    platform = jax.default_backend()
    every = CONTENDERS if platform == "gpu" else CONTENDERS[:3]
    chosen = [one for one in every if wanted(one.name, options.only, [options.baseline])]
    sizes = (options.batch, options.d_model, options.heads, options.dtype)
    for length, causal, backward in itertools.product(options.lengths, *[(False, True)] * 2):
        is_long = length >= LONG and platform == "cpu"
        if is_long and not causal:
            continue
        how: dict[str, Any] = {"rounds": min(options.rounds, LONG_ROUNDS)} if is_long else {}
        recorder.add(measure(Setting(length, causal, backward, *sizes), chosen, options, **how))
