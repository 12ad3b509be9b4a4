"""Checks of the exercises of the chapter on attention on hardware."""

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _least_time(attempt: Attempt) -> str | None:
    for operations, moved, op_rate, byte_rate in (
        (2e9, 12e6, 250e9, 25e9),
        (1e6, 12e6, 250e9, 25e9),
        (3e3, 7e2, 1e3, 1e2),
    ):
        got = attempt(operations, moved, op_rate, byte_rate)
        arithmetic, memory = operations / op_rate, moved / byte_rate
        want = max(arithmetic, memory)
        where = f"{operations:g} operations, {moved:g} bytes"
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        if abs(got - want) <= 1e-6 * want:
            continue
        if abs(got - arithmetic - memory) <= 1e-6 * want:
            return f"{where}: at best both go on at once, so the times do not add"
        if abs(got - min(arithmetic, memory)) <= 1e-6 * want:
            return f"{where}: the program is done when the slower of the two is"
        return f"{where}: expected {want:.3g} s; got {got:.3g}"
    return None


def _intensity(attempt: Attempt) -> str | None:
    for n, k, s, h, size in ((9, 3, 1024, 64, 4), (32, 8, 4096, 128, 2), (8, 8, 100, 16, 2)):
        got, want = attempt(n, k, s, h, size), 2 * n / (k * size)
        where = f"N = {n}, K = {k}, S = {s}, H = {h}, {size} bytes"
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        if abs(got - want) <= 1e-6 * want:
            continue
        if abs(got - 2 / size) <= 1e-6 * want:
            return f"{where}: a key is read once and serves {n // k} query heads"
        if abs(got - want / 2) <= 1e-6 * want:
            return f"{where}: half of it; a multiplication and an addition are two operations"
        if abs(got - 2 * want) <= 1e-6 * want:
            return f"{where}: twice too much; values are read as well as keys"
        if abs(got - want * size) <= 1e-6 * want * size:
            return f"{where}: that is for each number; a number has {size} bytes"
        return f"{where}: expected {want:.3f}; got {got:.3f}"
    return None


def _whole(attempt: Attempt) -> str | None:
    for share, gain in ((0.5, 4.0), (0.8, 2.0), (0.1, 10.0), (1.0, 3.0)):
        got, want = attempt(share, gain), 1 / (1 - share + share / gain)
        where = f"a share of {share:g}, {gain:g} times as fast"
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        if abs(got - want) <= 1e-6 * want:
            continue
        if abs(got - 1 / want) <= 1e-6 * want:
            return f"{where}: that is the time that is left; how many times as fast is it?"
        if abs(got - (share * gain + 1 - share)) <= 1e-6 * want:
            return f"{where}: times add, speeds do not"
        return f"{where}: expected {want:.3f}; got {got:.3f}"
    return None


CHECKS: dict[str, Check] = {
    "least-time": _least_time,
    "intensity": _intensity,
    "whole": _whole,
}
"""The checks of the chapter on attention on hardware, by the name of the exercise."""
