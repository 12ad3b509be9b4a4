"""Checks of the exercises of the chapter on three bugs in a kernel."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge

LOGS = (
    ([("start", 0), ("wait", 0), ("start", 1), ("read", 0), ("wait", 1), ("read", 1)], 2, None),
    ([("start", 0), ("start", 1), ("read", 0), ("wait", 0), ("wait", 1), ("read", 1)], 2, 2),
    ([("start", 0), ("wait", 0), ("start", 1), ("read", 0), ("wait", 1), ("read", 1)], 1, 2),
    ([("start", 0), ("start", 1), ("wait", 0), ("start", 2), ("read", 0)], 2, 3),
    ([("start", 0), ("start", 1), ("wait", 0), ("start", 2), ("read", 0)], 3, None),
)


@exercise("bytes")
def _bytes(attempt: Attempt) -> Iterator[str | None]:
    for buffers, block, h, c, size in ((2, 128, 128, 128, 2), (3, 256, 64, 32, 4)):
        one = block * (h + c) * size
        hints = {
            "that is one buffer of each": one,
            "values need buffers too": buffers * block * h * size,
        }
        where = f"{buffers} buffers of {block} rows: "
        yield judge(attempt(buffers, block, h, c, size), buffers * one, hints, where)


@exercise("race")
def _race(attempt: Attempt) -> Iterator[str | None]:
    for log, buffers, want in LOGS:
        got = attempt(log, buffers)
        if got == want:
            continue
        shown = ", ".join(f"{event} {u}" for event, u in log)
        hint = " (a buffer is overwritten)" if got is None and want == 3 - (buffers < 2) else ""
        yield f"{shown}, {buffers} buffers: expected {want}; got {got}{hint}"


@exercise("hides")
def _hides(attempt: Attempt) -> Iterator[str | None]:
    scores = np.asarray(attempt(), float)
    if scores.shape != (1, 256):
        yield f"expected shape (1, 256); got {scores.shape}"
        return
    if np.ptp(scores) == 0:
        yield "these are all equal"
    first, second = scores[0, :128].max(), scores[0, 128:].max()
    if second > first:
        yield "the maximum rises in the second block, so the sum should have shrunk"
