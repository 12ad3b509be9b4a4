"""Checks of the exercises of the chapter on attention on hardware."""

from collections.abc import Iterator

from mha_book.exercises import Attempt, exercise, judge


@exercise("least-time")
def _least_time(attempt: Attempt) -> Iterator[str | None]:
    for operations, moved, op_rate, byte_rate in (
        (2e9, 12e6, 250e9, 25e9),
        (1e6, 12e6, 250e9, 25e9),
        (3e3, 7e2, 1e3, 1e2),
    ):
        arithmetic, memory = operations / op_rate, moved / byte_rate
        hints = {
            "at best both go on at once, so the times do not add": arithmetic + memory,
            "the program is done when the slower of the two is": min(arithmetic, memory),
        }
        got, where = attempt(operations, moved, op_rate, byte_rate), f"{operations:g} operations"
        yield judge(got, max(arithmetic, memory), hints, f"{where}, {moved:g} bytes: ")


@exercise("intensity")
def _intensity(attempt: Attempt) -> Iterator[str | None]:
    for n, k, s, h, size in ((9, 3, 1024, 64, 4), (32, 8, 4096, 128, 2), (8, 8, 100, 16, 2)):
        want = 2 * n / (k * size)
        hints = {
            f"a key is read once and serves {n // k} query heads": 2 / size,
            "half of it; a multiplication and an addition are two operations": want / 2,
            "twice too much; values are read as well as keys": 2 * want,
            f"that is for each number; a number has {size} bytes": want * size,
        }
        where = f"N = {n}, K = {k}, S = {s}, H = {h}, {size} bytes: "
        yield judge(attempt(n, k, s, h, size), want, hints, where)


@exercise("whole")
def _whole(attempt: Attempt) -> Iterator[str | None]:
    for share, gain in ((0.5, 4.0), (0.8, 2.0), (0.1, 10.0), (1.0, 3.0)):
        want = 1 / (1 - share + share / gain)
        hints = {
            "that is the time that is left; how many times as fast is it?": 1 / want,
            "times add, speeds do not": share * gain + 1 - share,
        }
        where = f"a share of {share:g}, {gain:g} times as fast: "
        yield judge(attempt(share, gain), want, hints, where)
