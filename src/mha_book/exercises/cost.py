"""Checks of the exercises of the chapter on what heads cost."""

from collections.abc import Iterator

from mha_book.exercises import Attempt, exercise, judge

# D, N, K, H: all different, then a layer whose heads are wider together than the model.
SIZES = ((35, 6, 2, 11), (512, 8, 8, 64), (1024, 16, 8, 128))


@exercise("parameters")
def _count_parameters(attempt: Attempt) -> Iterator[str | None]:
    for d, n, k, h in SIZES:
        hints = {
            "4 D² holds for K = N and N H = D alone": 4 * d * d,
            f"keys and values have {k} heads, not {n}": 4 * d * n * h,
            "the output projection is missing": d * h * (n + 2 * k),
        }
        where = f"for D = {d}, N = {n}, K = {k}, H = {h} "
        yield judge(attempt(d, n, k, h), 2 * d * h * (n + k), hints, where)


@exercise("balance")
def _balance(attempt: Attempt) -> Iterator[str | None]:
    for d, n, k, h in SIZES:
        want, factor = d * (n + k) / n, "the answer is off by a factor of 2: a pair has a score and"
        hints = {
            f"{factor} a value": 2 * want,
            f"{factor} a value, too": want / 2,
            f"divide by the multiplications of one pair, over all {n} heads": d * (n + k) * h,
        }
        where = f"for D = {d}, N = {n}, K = {k}, H = {h} "
        yield judge(attempt(d, n, k, h), want, hints, where)


@exercise("longest")
def _longest(attempt: Attempt) -> Iterator[str | None]:
    # Memory, layers, key/value heads, head width, bytes of a number, sequences.
    cases = ((2**30, 30, 3, 64, 4, 1), (10**9, 32, 8, 128, 2, 7), (1000, 2, 1, 16, 2, 1))
    for memory, layers, k, h, size, batch in cases:
        each = batch * layers * 2 * k * h * size
        hints = {
            "a position has a key and a value": memory // (each // 2),
            "every layer has keys and values of its own": memory // (each // layers),
            "a sequence has a whole number of positions": memory / each,
            "every sequence has a cache of its own": memory // (each // batch),
        }
        sizes = f"{memory} bytes, {layers} layers, K = {k}, H = {h}, {size} bytes"
        got = attempt(memory, layers, k, h, size, batch)
        yield judge(got, memory // each, hints, f"for {sizes}, {batch} sequences: ")
