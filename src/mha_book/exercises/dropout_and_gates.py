"""Checks of the exercises of the chapter on dropout and gates."""

import math
from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("ratio")
def _ratio(attempt: Attempt) -> Iterator[str | None]:
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


@exercise("open-gate")
def _open_gate(attempt: Attempt) -> Iterator[str | None]:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    for log_alpha, beta, gamma, zeta in ((0.7, 2 / 3, -0.1, 1.1), (1.5, 0.5, -0.2, 1.4)):
        got = attempt(log_alpha, beta, gamma, zeta)
        if not isinstance(got, tuple) or len(got) != 2:
            yield "expected two probabilities, of an open gate and of a gate of 1"
        shift, full_shift = math.log(-gamma / zeta), math.log((1 - gamma) / (zeta - 1))
        is_open, below = (sigmoid(log_alpha - beta * x) for x in (shift, full_shift))
        where = f"for log alpha = {log_alpha}, beta = {beta:.2f}, gamma = {gamma}, zeta = {zeta} "
        factor = "the noise is divided by beta: the threshold has the factor beta"
        other = "this is the probability of the other sign of the shift"
        hints = {
            "this is s without noise exceeding 1/2: the gate is stretched": sigmoid(log_alpha),
            other: sigmoid(log_alpha + beta * shift),
            factor: sigmoid(log_alpha - shift),
            "this is the probability that the gate is closed": 1 - is_open,
        }
        yield judge(got[0], is_open, hints, f"{where}P(g > 0) is the first: ")
        hints = {"the second is the probability that the gate is below 1": 1 - below}
        yield judge(got[1], below, hints, f"{where}P(g = 1) is the second: ")
