"""The settings of the attention benchmark: inputs, what is timed, what is expected.

T = S positions, N heads, widths H = C.  Inputs are drawn heads first and rounded to the
setting's dtype before the float64 reference sees them.
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

__all__ = [
    "TOLERANCES",
    "Case",
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


class Case(NamedTuple):
    """One setting in which all contenders are compared."""

    length: int
    is_causal: bool
    backward: bool
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """A short title."""
        mask = "causal" if self.is_causal else "full"
        return f"T={self.length} {mask} {'forward+backward' if self.backward else 'forward'}"


def inputs_of(case: Case) -> tuple[np.ndarray, ...]:
    """Random query, key, value and cotangent (B, N, T, H), rounded to the case's dtype."""
    rng = np.random.default_rng(case.length)
    shape = (case.batch, case.heads, case.length, case.head_dim)
    return tuple(rng.standard_normal(shape).astype(jnp.dtype(case.dtype)) for _ in range(4))


def expected_of(case: Case, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The float64 outputs of a case, heads first."""
    cotangent = inputs[3] if case.backward else None
    return oracle.attention_float64(*inputs[:3], is_causal=case.is_causal, cotangent=cotangent)


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
    contender: peers.Contender, outputs: Sequence[Any], expected: Sequence[np.ndarray], case: Case
) -> float:
    """The checked error of a contender's outputs, read heads first."""
    arrays = [np.asarray(x) for x in outputs]
    if contender.layout == "TNH":
        arrays = [np.swapaxes(x, 1, 2) for x in arrays]
    return harness.verify(contender.name, arrays, expected, TOLERANCES[case.dtype])


def run_of(
    contender: peers.Contender, case: Case, inputs: Sequence[np.ndarray]
) -> Callable[[], Any]:
    """What is timed, with its arguments: a function of nothing to the outputs."""
    if contender.prepare is not None:
        return contender.prepare(inputs, case.is_causal, case.backward)
    return functools.partial(timed_function(contender, case), *arguments_of(contender, inputs))


def prepare_row(name: str, case: Sequence[Any]) -> Callable[[], Any]:
    """One contender, compiled, as a function to call once (the target of `memory`)."""
    contender = next(one for one in peers.CONTENDERS if one.name == name)
    setting = Case(*case)
    if contender.prepare is not None:
        return run_of(contender, setting, inputs_of(setting))
    arguments = arguments_of(contender, inputs_of(setting))
    compiled = timed_function(contender, setting).lower(*arguments).compile()
    return lambda: compiled(*arguments)
