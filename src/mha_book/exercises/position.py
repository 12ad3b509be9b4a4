"""Checks of the exercises of the chapter on positions."""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.attention.reference import attention_weights
from mha_book.exercises import Attempt, exercise, judge
from mha_book.rope import rotary_angles, rotate


@exercise("turn")
def _turn(attempt: Attempt) -> Iterator[str | None]:
    def turned(angle: float) -> np.ndarray:
        c, s = math.cos(angle), math.sin(angle)
        return np.array([3 * c - s, 3 * s + c])

    hints = {
        "that turns backwards: the first number loses sin times the second": turned(-0.8),
        "the angle is the position times the speed": turned(0.4),
    }
    right = f"(3, 1) at position 2 and 0.4 radians a position is {turned(0.8).round(3).tolist()}"
    yield judge(np.asarray(attempt((3.0, 1.0), 2, 0.4)), turned(0.8), hints, "", right)


@exercise("score")
def _score(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(2, 10))

    def want(distance: int) -> float:
        angles = rotary_angles(jnp.array([distance + 11, 11]), 10, 100.0)
        pair = rotate(jnp.asarray(np.stack((q, k)), jnp.float32), angles)
        return float(pair[0] @ pair[1])

    for distance in (0, 1, 7):
        got = np.asarray(attempt(q, k, distance, 100.0))
        if got.dtype == object:
            yield "expected a number"
        if got.shape != ():
            yield f"expected one number; got shape {got.shape}: sum over the pairs"
        if np.isclose(got, want(distance), atol=1e-4):
            continue
        if np.isclose(got, want(-distance), atol=1e-4):
            yield "the key stands before the query, not after it: the sine has the other sign"
        if np.isclose(got * math.sqrt(10), want(distance), atol=1e-4):
            yield "leave the division by the square root of H out"
        found = f"{want(distance):.3f}; got {float(got):.3f}"
        yield f"on an example at distance {distance} the score is {found}"


@exercise("blindness")
def _blindness(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    order = np.array([3, 0, 4, 1, 2])  # not its own inverse

    def blind(y: Any) -> Any:
        return attention_weights(y, y) @ y

    def seeing(y: Any) -> Any:
        return y * jnp.arange(1.0, len(y) + 1)[:, None]

    got = attempt(blind, x, order)
    if np.asarray(got).shape != ():
        yield f"expected one number, the largest difference; got shape {np.asarray(got).shape}"
    if float(got) > 1e-4:
        yield f"attention without positions is blind: expected 0; got {float(got):.3f}"
    want = float(abs(seeing(x[order]) - seeing(x)[order]).max())
    got = float(attempt(seeing, x, order))
    if not np.isclose(got, want):
        yield f"for a layer that multiplies by position + 1 expected {want:.3f}; got {got:.3f}"
