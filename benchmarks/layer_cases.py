"""The settings of the layer benchmark: inputs, weights, contenders, what is expected.

Self-attention without biases from x (B, T, D) to (B, T, D): N heads of width H = D/N.  Every
contender has the same weights, in its own form; gradients are of x and of all four of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
from cases import TOLERANCES

__all__ = [
    "BASELINE",
    "Contender",
    "Inputs",
    "Setting",
    "checked_error",
    "expected_of",
    "inputs_of",
    "prepare_row",
    "run_of",
]

BASELINE = "reference"


class Setting(NamedTuple):
    """One setting in which the layers are compared."""

    length: int
    is_causal: bool
    backward: bool
    batch: int = 1
    d_model: int = 512
    heads: int = 8
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """A short title."""
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


def inputs_of(setting: Setting) -> Inputs:
    """Random input and weights, rounded to the setting's dtype."""
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


class Contender(NamedTuple):
    """One row of the benchmark.

    Attributes:
        name: as printed and stored.
        package: the distribution that it needs.
        build: from the setting and the four matrices, the weights in its own form and the layer,
            (weights, x) to the output.
        matrices: the weights, or their gradient, as four matrices again.
        remark: what a reader of the table must know.
        prepare: for a peer that is no function of JAX arrays, in place of `build`: from setting
            and inputs, the function to time; its output is what `matrices` takes apart.
        layout: of what it is given and returns.
    """

    name: str
    package: str
    build: Callable[[Setting, Sequence[jax.Array]], tuple[Any, Callable[..., jax.Array]]] | None
    matrices: Callable[[Any], Sequence[Any]]
    remark: str
    prepare: Callable[[Setting, Inputs], Callable[[], Any]] | None = None
    layout: str = "BTD"


def _timed(
    contender: Contender, setting: Setting, inputs: Inputs
) -> tuple[jax.stages.Wrapped, tuple[Any, ...]]:
    """What is timed, (weights, x, cotangent) to output and gradients, and its arguments."""
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
    """What is timed, with its arguments: a function of nothing to the outputs."""
    if contender.prepare is not None:
        return contender.prepare(setting, inputs)
    function, arguments = _timed(contender, setting, inputs)
    return functools.partial(function, *arguments)


def checked_error(
    contender: Contender, outputs: Sequence[Any], expected: Sequence[oracle.Piece], setting: Setting
) -> float:
    """The checked error of a contender's output and gradients."""
    arrays = list(outputs[:2])
    if setting.backward:
        arrays += contender.matrices(outputs[2])
    found = [harness.as_numpy(array) for array in arrays]
    got = [found[piece.output][piece.where] for piece in expected]
    wanted = [piece.values for piece in expected]
    return harness.verify(contender.name, got, wanted, 2 * TOLERANCES[setting.dtype])


def prepare_row(name: str, setting: Sequence[Any]) -> Callable[[], Any]:
    """One contender, compiled, as a function to call once (the target of `memory`)."""
    import layer_peers

    contender = next(one for one in layer_peers.contenders(gpu=True) if one.name == name)
    case = Setting(*setting)
    if contender.prepare is not None:
        return run_of(contender, case, inputs_of(case))
    function, arguments = _timed(contender, case, inputs_of(case))
    compiled = function.lower(*arguments).compile()
    return lambda: compiled(*arguments)
