"""The settings of the attention benchmark: inputs, what is timed, what is expected.

T = S positions, N query heads, K key/value heads, widths H = C.  Inputs are drawn heads first and
rounded to the setting's dtype before the float64 reference sees them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import peers
import room

__all__ = [
    "TOLERANCES",
    "Case",
    "Expected",
    "arguments_of",
    "checked_error",
    "expected_of",
    "inputs_of",
    "prepare_row",
    "run_of",
    "timed_function",
]

# Largest deviation from float64, relative to the largest entry, that a timed output may have.
TOLERANCES = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 6e-3}
LARGE = 2**30  # from so many bytes of float32 scores on, it is asked first whether all of it fits


class Case(NamedTuple):
    """One setting in which all contenders are compared."""

    length: int
    is_causal: bool
    backward: bool
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"
    kv_heads: int | None = None  # as many as heads

    @property
    def label(self) -> str:
        """A short title; sizes are named where they are not the usual ones."""
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
    """Random query (B, N, T, H), key, value (B, K, T, H) and cotangent, in the case's dtype."""
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


def expected_of(case: Case, inputs: Sequence[np.ndarray]) -> Expected:
    """The float64 outputs of a case, heads first, or as much of them as can be afforded."""
    cotangent = inputs[3] if case.backward else None
    return Expected(
        *oracle.attention_pieces(*inputs[:3], is_causal=case.is_causal, cotangent=cotangent)
    )


def timed_function(contender: peers.Contender, case: Case) -> jax.stages.Wrapped:
    """What is timed: (query, key, value, cotangent) to the output, and the gradients if asked."""

    def forward(query, key, value):
        return contender.call(query, key, value, case.is_causal)

    def forward_backward(query, key, value, cotangent):
        output, pull = jax.vjp(forward, query, key, value)
        return output, *pull(cotangent)

    if case.backward:
        return jax.jit(forward_backward)
    return jax.jit(lambda query, key, value, cotangent: (forward(query, key, value),))


def arguments_of(contender: peers.Contender, inputs: Sequence[np.ndarray]) -> list[jax.Array]:
    """The inputs on the device, in the contender's layout."""
    swap = contender.layout == "TNH"
    arrays = [jnp.asarray(np.swapaxes(x, 1, 2) if swap else x) for x in inputs]
    return jax.block_until_ready(arrays)


def checked_error(
    contender: peers.Contender, outputs: Sequence[Any], expected: Expected, case: Case
) -> float:
    """The checked error of a contender's outputs, read heads first."""
    arrays = [harness.as_numpy(x) for x in outputs]
    if contender.layout == "TNH":
        arrays = [np.swapaxes(x, 1, 2) for x in arrays]
    got = [arrays[piece.output][piece.where] for piece in expected.pieces]
    wanted = [piece.values for piece in expected.pieces]
    return harness.verify(contender.name, got, wanted, TOLERANCES[case.dtype])


def run_of(
    contender: peers.Contender, case: Case, inputs: Sequence[np.ndarray]
) -> Callable[[], Any]:
    """What is timed, with its arguments: a function of nothing to the outputs."""
    if contender.prepare is not None:
        return contender.prepare(inputs, case.is_causal, case.backward)
    function, arguments = timed_function(contender, case), arguments_of(contender, inputs)
    if 4 * case.batch * case.heads * case.length**2 >= LARGE:
        room.check_room(function, arguments)
    return functools.partial(function, *arguments)


def prepare_row(name: str, case: Sequence[Any]) -> Callable[[], Any]:
    """One contender, compiled, as a function to call once (the target of `memory`)."""
    contender = next(one for one in peers.contenders(gpu=True) if one.name == name)
    setting = Case(*case)
    if contender.prepare is not None:
        return run_of(contender, setting, inputs_of(setting))
    arguments = arguments_of(contender, inputs_of(setting))
    compiled = timed_function(contender, setting).lower(*arguments).compile()
    return lambda: compiled(*arguments)
