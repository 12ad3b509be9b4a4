"""Checks of the exercises of the chapter on what lies beyond the trained length."""

import math

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _slow_pairs(attempt: Attempt) -> str | None:
    for theta, width, length, want in ((1e5, 64, 8192, 12), (1e4, 128, 4096, 18), (100.0, 6, 7, 2)):
        got = attempt(theta, width, length)
        if got == want:
            continue
        where = f"for theta = {theta:g}, H = {width}, {length} positions"
        if got == width // 2 - want:
            return f"{where} that counts the pairs that do complete a turn"
        return f"{where} expected {want} of {width // 2}; got {got}"
    return None


def _new_base(attempt: Attempt) -> str | None:
    for theta, width, factor, p in ((1e5, 64, 4.0, 31), (1e4, 128, 8.0, 48), (100.0, 6, 2.0, 1)):
        got = attempt(theta, width, factor, p)
        before = theta ** (-2 * p / width)
        if not isinstance(got, int | float) or got <= 0:
            return "expected one positive number"
        slowed = before / got ** (-2 * p / width)
        if math.isclose(slowed, factor, rel_tol=1e-4):
            continue
        if math.isclose(slowed, 1 / factor, rel_tol=1e-4):
            return "that turns the pair faster: the base has to grow"
        where = f"for theta = {theta:g}, H = {width}, pair {p}"
        return f"{where} the pair is slowed by {slowed:.3g}, not by {factor:g}"
    return None


def _by_parts(attempt: Attempt) -> str | None:
    for theta, width, length, factor in ((1e5, 64, 8192, 4.0), (100.0, 6, 20, 2.0)):
        got = attempt(theta, width, length, factor)
        got = np.asarray(got, np.float64)
        if got.shape != (width // 2,):
            return f"expected a speed for each of {width // 2} pairs; got shape {got.shape}"
        plain = theta ** (-np.arange(0, width, 2) / width)
        slow = length * plain < 2 * np.pi
        if np.allclose(got, np.where(slow, plain / factor, plain)):
            continue
        if np.allclose(got, np.where(slow, plain, plain / factor)):
            return "that slows the pairs that complete a turn, and leaves the others"
        if np.allclose(got, np.where(slow, plain * factor, plain)):
            return "a slower pair has a smaller speed: divide by the factor"
        p = int(np.argmax(~np.isclose(got, np.where(slow, plain / factor, plain))))
        turns = length * plain[p] / (2 * np.pi)
        return f"pair {p}, which makes {turns:.2f} turns in {length} positions, has a wrong speed"
    return None


CHECKS: dict[str, Check] = {
    "slow-pairs": _slow_pairs,
    "new-base": _new_base,
    "by-parts": _by_parts,
}
"""The checks of this chapter's exercises, by name."""
