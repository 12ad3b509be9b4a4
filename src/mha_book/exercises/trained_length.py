"""Checks of the exercises of the chapter on what lies beyond the trained length."""

import math
from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("slow-pairs")
def _slow_pairs(attempt: Attempt) -> Iterator[str | None]:
    for theta, width, length, want in ((1e5, 64, 8192, 12), (1e4, 128, 4096, 18), (100.0, 6, 7, 2)):
        hints = {"that counts the pairs that do complete a turn": width // 2 - want}
        where = f"for theta = {theta:g}, H = {width}, {length} positions "
        yield judge(attempt(theta, width, length), want, hints, where)


@exercise("new-base")
def _new_base(attempt: Attempt) -> Iterator[str | None]:
    for theta, width, factor, p in ((1e5, 64, 4.0, 31), (1e4, 128, 8.0, 48), (100.0, 6, 2.0, 1)):
        got = attempt(theta, width, factor, p)
        before = theta ** (-2 * p / width)
        if not isinstance(got, int | float) or got <= 0:
            yield "expected one positive number"
        slowed = before / got ** (-2 * p / width)
        if math.isclose(slowed, factor, rel_tol=1e-4):
            continue
        if math.isclose(slowed, 1 / factor, rel_tol=1e-4):
            yield "that turns the pair faster: the base has to grow"
        where = f"for theta = {theta:g}, H = {width}, pair {p}"
        yield f"{where} the pair is slowed by {slowed:.3g}, not by {factor:g}"


@exercise("by-parts")
def _by_parts(attempt: Attempt) -> Iterator[str | None]:
    for theta, width, length, factor in ((1e5, 64, 8192, 4.0), (100.0, 6, 20, 2.0)):
        plain = theta ** (-np.arange(0, width, 2) / width)
        slow = length * plain < 2 * np.pi
        others = "that slows the pairs that complete a turn, and leaves the others"
        hints = {
            others: np.where(slow, plain, plain / factor),
            "a slower pair has a smaller speed: divide by the factor": np.where(
                slow, plain * factor, plain
            ),
        }
        want, where = np.where(slow, plain / factor, plain), f"for {length} positions "
        yield judge(attempt(theta, width, length, factor), want, hints, where)
