"""Checks of the exercises of the chapter on serving."""

from collections.abc import Iterator

from mha_book.exercises import Attempt, exercise, judge


@exercise("step")
def _step(attempt: Attempt) -> Iterator[str | None]:
    for devices, num_kv_heads in ((8, 8), (16, 8), (4, 8), (8, 1)):
        weights, cache, batch, rate = 900.0, 70.0, 3, 11.0
        split = min(devices, num_kv_heads)
        want = (weights / devices + batch * cache / split) / rate
        hints = {
            "a KV head is whole on each device that has it": (weights + batch * cache)
            / devices
            / rate,
            "the weights are divided over all devices": (weights + batch * cache) / split / rate,
            "the weights are read once for the whole batch": batch
            * (weights / devices + cache / split)
            / rate,
        }
        where = f"{num_kv_heads} KV heads on {devices} devices: "
        got = attempt(weights, cache, batch, devices, num_kv_heads, rate)
        yield judge(got, want, hints, where)


@exercise("context")
def _context(attempt: Attempt) -> Iterator[str | None]:
    for memory, weights, token, batch in ((1000, 300, 3, 7), (5000, 100, 2, 40), (100, 95, 1, 3)):
        want = max(0, (9 * memory // 10 - weights) // (batch * token))
        hints = {
            "a tenth of the memory stays free": (memory - weights) // (batch * token),
            "the weights take memory, too": 9 * memory // 10 // (batch * token),
            "that is of all requests together": (9 * memory // 10 - weights) // token,
        }
        where = f"{memory} bytes, weights of {weights}, {token} a token, {batch} requests: "
        yield judge(attempt(memory, weights, token, batch), want, hints, where)


@exercise("batch")
def _batch(attempt: Attempt) -> Iterator[str | None]:
    for weights, cache in ((100, 30), (90, 30), (5, 7)):
        hints = {
            "at that batch it reads as much of both, or less cache": weights // cache,
            "a batch is a whole number": weights / cache,
        }
        where = f"weights of {weights} bytes, caches of {cache}: "
        yield judge(attempt(weights, cache), weights // cache + 1, hints, where)
