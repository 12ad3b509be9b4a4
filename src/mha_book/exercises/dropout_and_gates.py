"""Checks of the exercises of the chapter on dropout and gates."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise


@exercise("gates")
def _gates(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(1)
    w_o, d_w_o = (jnp.asarray(rng.normal(size=(3, 5, 7)), jnp.float32) for _ in range(2))
    want = np.einsum("hcd,hcd->h", w_o, d_w_o)
    got = attempt(w_o, d_w_o)
    if np.shape(got) != want.shape:
        yield f"expected one number a head, shape {want.shape}; got {np.shape(got)}"
    if np.allclose(got, np.sum(d_w_o, axis=(1, 2)), rtol=1e-3):
        yield "that is the slope along a block of ones: along what does a gate move W_O?"
    if not np.allclose(got, want, rtol=1e-3, atol=1e-4):
        yield "the shape is right, the numbers are not: a gate multiplies its head's block of W_O"


@exercise("reserve")
def _reserve(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(2)
    for number in (2, 4):
        losses = 2.0 + rng.uniform(0.1, 1.0, size=2**number)
        losses[0] = 2.0
        got = attempt(losses)
        costs = losses - losses[0]
        single = sum(costs[1 << head] for head in range(number))
        if np.allclose(got, losses[-1] / sum(losses[1 << head] for head in range(number))):
            yield "a loss is what is left: take that of the whole model from each of them first"
        if np.allclose(got, single / costs[-1]):
            yield "that is the sum over the whole, the other way around"
        if not np.allclose(got, costs[-1] / single):
            yield f"of {number} heads: which entries lack one head, and which lacks all?"


@exercise("forecast")
def _forecast(attempt: Attempt) -> Iterator[str | None]:
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
            yield f"expected at most three calls of slope; got {len(calls)}"
        if np.allclose(got, -want):
            yield "the sign: the gate goes from 1 to 0"
        if not np.allclose(got, want):
            yield f"wrong for a loss of degree {degree} in the gate; where else is there a slope?"


@exercise("share")
def _share(attempt: Attempt) -> Iterator[str | None]:
    for rate in (0.0, 0.1, 0.5):
        got = attempt(rate)
        if np.shape(got) != (2,):
            yield f"expected two numbers; got {got!r}"
        if rate == 0.0 and not np.allclose(got, (6.0, 0.0), atol=1e-6):
            yield "at the rate 0 the start has the loss 0 already: nothing moves"
        want = 6.0 / (2.0 + rate / (1.0 - rate))
        if rate > 0.0 and not np.allclose(got, want, atol=1e-3):
            yield f"at the rate {rate}: what is the mean of the squared error, over the factors?"
