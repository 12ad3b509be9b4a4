"""Checks of the exercises of the chapter on devices."""

import math
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


@exercise("block")
def _block(attempt: Attempt) -> Iterator[str | None]:
    for memory, width, size in ((2**18, 64, 4), (2**20, 128, 2), (2**24, 128, 4), (1000, 8, 4)):
        got, want = attempt(memory, width, size), 0
        while size * ((want + 128) * 4 * width + (want + 128) ** 2) <= memory:
            want += 128
        if got == want:
            continue
        where = f"{memory} bytes, width {width}, {size} bytes a number"
        if isinstance(got, int) and got > 0 and got % 128:
            yield f"{where}: {got} is no multiple of 128"
        yield f"{where}: expected {want}; got {got}"


@exercise("rows")
def _rows(attempt: Attempt) -> Iterator[str | None]:
    for operations, moved, size, group in (
        (900.0, 3.0, 2, 1), (900.0, 3.0, 2, 8), (900.0, 3.0, 1, 8), (1000.0, 3.0, 4, 1),
    ):  # fmt: skip
        corner = operations / moved
        rows = corner * size / 2
        hints = {
            "the query heads that share a key head are rows too": math.ceil(rows),
            f"a key and a value are fetched, {size} bytes to a number": math.ceil(corner / group),
        }
        got, want = attempt(operations, moved, size, group), math.ceil(rows / group)
        where = f"corner {corner:.0f}, {size} bytes a number, {group} heads to a key: "
        yield judge(got, want, hints, where)
