"""Gradients: the backward pass by hand against automatic differentiation of the reference.

    PYTHONPATH=src python3 benchmarks/gradients.py --quick

Forward and backward together, compiled: of attention alone (depth 0), and of a stack of
multi-head layers y = x + attend(x) with no weights shared.  In a stack the layer's own backward
pass is by hand too.  The rules are in README.md beside this file.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attention
from harness import oracle
from harness.comparison import Contender, compare
from harness.memory import compiled
from harness.options import Parser
from harness.rates import attention_flops, measure_rates, visible_pairs
from harness.report import Recorder
from mha_book import MultiHeadParams, multi_head_attention
from mha_book.multihead.gradient import multi_head_attention_vjp
from peers.attention import BASELINE, CONTENDERS

__all__ = ["NAMES", "Stack", "main", "measure_stack", "prepare_stack"]

NAMES = (BASELINE, "manual", "recompute")
TOLERANCE = 1e-4  # of float32 against float64, relative to the largest entry; layers add up errors
REMARKS = {
    "reference": "jax.vjp of the reference",
    "manual": "by hand, from the exponentials of the forward pass",
    "recompute": "by hand, the weights computed again",
}


class Stack(NamedTuple):
    """Self-attention layers one after another, x + layer(x), of width N·H."""

    length: int
    is_causal: bool
    depth: int
    heads: int = 8
    head_dim: int = 64

    @property
    def label(self) -> str:
        """A short title."""
        layers = "1 layer" if self.depth == 1 else f"{self.depth} layers"
        return f"T={self.length} {'causal' if self.is_causal else 'full'} {layers}"


def inputs_of(case: Stack) -> tuple[list[tuple[np.ndarray, ...]], np.ndarray, np.ndarray]:
    """Random weights (w_q, w_k, w_v, w_o) of each layer, input and cotangent (T, D)."""
    rng = np.random.default_rng(case.length)
    width = case.heads * case.head_dim

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    outer, inner = (width, case.heads, case.head_dim), (case.heads, case.head_dim, width)
    scale = np.float32(1 / np.sqrt(width))
    weights = [
        tuple(scale * draw(*shape) for shape in (outer, outer, outer, inner))
        for _ in range(case.depth)
    ]
    return weights, draw(case.length, width), draw(case.length, width)


def expected_of(case: Stack, weights: Any, x: np.ndarray, d_x: np.ndarray) -> list[np.ndarray]:
    """Output, gradient of the input, gradients of the weights, in float64 by NumPy."""
    attend = functools.partial(oracle.attention_float64, is_causal=case.is_causal)
    x, d_x, kept = x.astype(np.float64), d_x.astype(np.float64), []
    for layer in weights:
        w_q, w_k, w_v, w_o = (w.astype(np.float64) for w in layer)
        q, k, v = (np.einsum("ib,bha->hia", x, w)[None] for w in (w_q, w_k, w_v))
        (heads,) = attend(q, k, v)
        kept.append((x, q, k, v, heads[0], w_q, w_k, w_v, w_o))
        x = x + np.einsum("hic,hcd->id", heads[0], w_o)
    gradients: list[list[np.ndarray]] = []
    for before, q, k, v, heads, *projections, w_o in reversed(kept):
        d_heads = np.einsum("id,hcd->hic", d_x, w_o)
        _, *d_projected = attend(q, k, v, cotangent=d_heads[None])
        d_w_o = np.einsum("hic,id->hcd", heads, d_x)
        d_weights = [np.einsum("ib,hia->bha", before, d[0]) for d in d_projected]
        gradients.append([*d_weights, d_w_o])
        for d, w in zip(d_projected, projections, strict=True):
            d_x = d_x + np.einsum("hia,bha->ib", d[0], w)
    flat = [gradient for layer in reversed(gradients) for gradient in layer]
    return [x, d_x, *flat]


def timed_function(name: str, case: Stack) -> Callable[..., Any]:
    """(weights, x, cotangent) to output, gradient of the input, gradients of the weights."""

    def by_hand(weights, x, d_x):
        pulls, gradients = [], []
        for layer in weights:
            options = {"is_causal": case.is_causal, "implementation": name}
            y, pull = multi_head_attention_vjp(MultiHeadParams(*layer), x, **options)
            x = x + y
            pulls.append(pull)
        for pull in reversed(pulls):
            found = pull(d_x)
            d_x = d_x + found.query
            gradients.append(found.params[:4])
        return x, d_x, tuple(reversed(gradients))

    def forward(weights, x):
        for layer in weights:
            x = x + multi_head_attention(
                MultiHeadParams(*layer), x, is_causal=case.is_causal, implementation=name
            )
        return x

    def automatic(weights, x, d_x):
        output, pull = jax.vjp(forward, weights, x)
        gradients, d_x = pull(d_x)
        return output, d_x, gradients

    return jax.jit(automatic if name == BASELINE else by_hand)


def prepare_stack(name: str, case: Sequence[Any]) -> Callable[[], Any]:
    """One contender, compiled, as a function to call once (the target of `peak_memory`)."""
    setting = Stack(*case)
    arguments = jax.block_until_ready(jax.tree.map(jnp.asarray, inputs_of(setting)))
    return compiled(functools.partial(timed_function(name, setting), *arguments))


def measure_stack(
    case: Stack, *, rounds: int, quick: bool = False, with_memory: bool = False
) -> dict[str, Any]:
    """All contenders on one stack; see `compare`."""
    inputs = inputs_of(case)
    expected = expected_of(case, *inputs)
    arguments = jax.block_until_ready(jax.tree.map(jnp.asarray, inputs))
    contenders = [
        Contender(
            name, functools.partial(timed_function(name, case), *arguments), remark=REMARKS[name]
        )
        for name in NAMES
    ]
    pairs, width = visible_pairs(case.length, case.length, is_causal=case.is_causal), case.head_dim
    flops = attention_flops(pairs, case.heads, width, width, backward=True)
    flops += 3 * 4 * 2 * case.length * (case.heads * width) ** 2  # the four projections
    return compare(
        case,
        contenders,
        error=lambda one, output: oracle.verify(
            one.name, jax.tree.leaves(output), expected, TOLERANCE
        ),
        baseline=BASELINE,
        rounds=rounds,
        memory="gradients:prepare_stack" if with_memory else None,
        visible_pairs=pairs,
        matmul_flops=flops * case.depth,
        tolerance=TOLERANCE,
        rates=measure_rates("float32", quick=quick),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a contender was refused."""
    parser = Parser(
        "gradients",
        "The backward pass by hand against automatic differentiation.",
        ratios_to="the reference's",
    )
    parser.sized("--lengths", (128, 512, 2048), (32,), help="sequence lengths")
    parser.memory()
    layers = "layers; 0 is attention alone"
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1, 4], help=layers)
    parser.set_defaults(dtype="float32")
    options = parser.parse(arguments)
    recorder = Recorder("gradients", options)
    shape = {"heads": 2, "head_dim": 16} if options.quick else {}
    contenders = [one for one in CONTENDERS if one.name in NAMES]
    for length, causal, depth in itertools.product(options.lengths, (False, True), options.depths):
        given: dict[str, Any] = {
            "rounds": options.rounds,
            "quick": options.quick,
            "with_memory": options.memory and length == max(options.lengths),
        }
        if depth:
            found = measure_stack(Stack(length, causal, depth, **shape), **given)
        else:
            case = attention.Case(length, causal, True, **shape)
            found = attention.measure(case, contenders, **given)
        recorder.add(found)
    return recorder.finish()


if __name__ == "__main__":
    sys.exit(main())
