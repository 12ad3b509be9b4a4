"""Checks of the exercises of the chapter on dropout and gates."""

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _gates(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(1)
    w_o, d_w_o = (jnp.asarray(rng.normal(size=(3, 5, 7)), jnp.float32) for _ in range(2))
    want = np.einsum("hcd,hcd->h", w_o, d_w_o)
    got = attempt(w_o, d_w_o)
    if np.shape(got) != want.shape:
        return f"expected one number a head, shape {want.shape}; got {np.shape(got)}"
    if np.allclose(got, np.sum(d_w_o, axis=(1, 2)), rtol=1e-3):
        return "that is the slope along a block of ones: along what does a gate move W_O?"
    if not np.allclose(got, want, rtol=1e-3, atol=1e-4):
        return "the shape is right, the numbers are not: a gate multiplies its head's block of W_O"
    return None


def _reserve(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(2)
    for number in (2, 4):
        losses = 2.0 + rng.uniform(0.1, 1.0, size=2**number)
        losses[0] = 2.0
        got = attempt(losses)
        costs = losses - losses[0]
        single = sum(costs[1 << head] for head in range(number))
        if np.allclose(got, losses[-1] / sum(losses[1 << head] for head in range(number))):
            return "a loss is what is left: take that of the whole model from each of them first"
        if np.allclose(got, single / costs[-1]):
            return "that is the sum over the whole, the other way around"
        if not np.allclose(got, costs[-1] / single):
            return f"of {number} heads: which entries lack one head, and which lacks all?"
    return None


def _forecast(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(3)
    for degree in (1, 2, 3, 4):
        loss = np.polynomial.Polynomial(rng.normal(size=degree + 1))
        want, slope = loss(0.0) - loss(1.0), loss.deriv()
        calls: list[float] = []

        def counted(gate: float) -> float:
            calls.append(gate)  # noqa: B023
            return float(slope(gate))  # noqa: B023

        got = attempt(counted)
        if len(calls) > 3:
            return f"expected at most three calls of slope; got {len(calls)}"
        if np.allclose(got, -want):
            return "the sign: the gate goes from 1 to 0"
        if not np.allclose(got, want):
            return f"wrong for a loss of degree {degree} in the gate; where else is there a slope?"
    return None


def _share(attempt: Attempt) -> str | None:
    for rate in (0.0, 0.1, 0.5):
        got = attempt(rate)
        if np.shape(got) != (2,):
            return f"expected two numbers; got {got!r}"
        if rate == 0.0 and not np.allclose(got, (6.0, 0.0), atol=1e-6):
            return "at the rate 0 the start has the loss 0 already: nothing moves"
        want = 6.0 / (2.0 + rate / (1.0 - rate))
        if rate > 0.0 and not np.allclose(got, want, atol=1e-3):
            return f"at the rate {rate}: what is the mean of the squared error, over the factors?"
    return None


CHECKS: dict[str, Check] = {
    "gates": _gates,
    "reserve": _reserve,
    "forecast": _forecast,
    "share": _share,
}
"""The checks of this chapter's exercises, by name."""
