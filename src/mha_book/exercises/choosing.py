"""Checks of the exercises of the chapter on choosing."""

from collections.abc import Iterator

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


@exercise("draft")
def _draft(attempt: Attempt) -> Iterator[str | None]:
    for drafted, checked in (([5, 7, 9], [5, 7, 9, 2]), ([5, 7, 9], [5, 8, 9, 2]), ([1], [3, 4])):
        same = [mine == theirs for mine, theirs in zip(drafted, checked[:-1], strict=True)]
        count = same.index(False) if False in same else len(same)
        hints = {
            "the model's own token after the last accepted one counts, too": checked[:count],
            "after the first rejected token nothing is valid": checked[: sum(same) + 1],
        }
        got, where = list(attempt(drafted, checked)), f"drafted {drafted}, checked {checked}: "
        yield judge(got, checked[: count + 1], hints, where)
