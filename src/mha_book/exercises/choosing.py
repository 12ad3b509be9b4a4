"""Checks of the exercises of the chapter on choosing."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("requests")
def _requests(attempt: Attempt) -> Iterator[str | None]:
    for memory, weights, token, context in ((100, 10, 2, 10), (1000, 300, 3, 40), (50, 45, 1, 9)):
        want = max(0, (9 * memory // 10 - weights) // (token * context))
        hints = {
            "a tenth of the memory stays free": (memory - weights) // (token * context),
            "the weights take memory, too": 9 * memory // 10 // (token * context),
        }
        where = f"for {memory} bytes, weights of {weights}, {token} a token, {context} tokens: "
        yield judge(attempt(memory, weights, token, context), want, hints, where)


@exercise("copies")
def _copies(attempt: Attempt) -> Iterator[str | None]:
    for num_kv_heads, devices in ((8, 8), (8, 16), (1, 8), (32, 4), (2, 8)):
        hints = {
            "a head is never stored on less than one device": devices // num_kv_heads,
            "that is how many KV heads a device has": num_kv_heads // devices,
        }
        want, where = max(1, devices // num_kv_heads), f"{num_kv_heads} on {devices} devices: "
        yield judge(attempt(num_kv_heads, devices), want, hints, where)


@exercise("align")
def _align(attempt: Attempt) -> Iterator[str | None]:
    for t, s in ((3, 7), (1, 5), (2, 9), (4, 4)):
        hints = {
            "that is aligned to the top left": np.tri(t, s, dtype=bool),
            "a query attends to itself, too": np.tri(t, s, s - t - 1, dtype=bool),
        }
        want = np.tri(t, s, s - t, dtype=bool)
        yield judge(attempt(t, s), want, hints, f"for {t} queries and {s} keys: ")
