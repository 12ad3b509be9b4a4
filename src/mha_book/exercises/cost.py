"""Checks of the exercises of the chapter on what heads cost."""

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]

# D, N, K, H: all different, then a layer whose heads are wider together than the model.
SIZES = ((35, 6, 2, 11), (512, 8, 8, 64), (1024, 16, 8, 128))


def _count_parameters(attempt: Attempt) -> str | None:
    for d, n, k, h in SIZES:
        got, want = attempt(d, n, k, h), 2 * d * h * (n + k)
        if got == want:
            continue
        where = f"for D = {d}, N = {n}, K = {k}, H = {h}"
        if got == 4 * d * d:
            return f"4 D² holds for K = N and N H = D alone; {where} there are {want}"
        if got == 4 * d * n * h:
            return f"{where} keys and values have {k} heads, not {n}"
        if got == d * h * (n + 2 * k):
            return f"{where} the output projection is missing"
        return f"{where} expected {want}; got {got}"
    return None


def _balance(attempt: Attempt) -> str | None:
    for d, n, k, h in SIZES:
        got, want = attempt(d, n, k, h), d * (n + k) / n
        if isinstance(got, (int, float)) and abs(got - want) <= 1e-6 * want:
            continue
        where = f"for D = {d}, N = {n}, K = {k}, H = {h}"
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        for factor in (2, 0.5):
            if abs(got - factor * want) <= 1e-6 * want:
                return f"{where} the answer is off by a factor of 2: a pair has a score and a value"
        if abs(got - d * (n + k) * h) <= 1e-6 * want * n * h:
            return f"{where} divide by the multiplications of one pair, over all {n} heads"
        return f"{where} expected {want:.3f}; got {got:.3f}"
    return None


def _longest(attempt: Attempt) -> str | None:
    # Memory, layers, key/value heads, head width, bytes of a number, sequences.
    cases = ((2**30, 30, 3, 64, 4, 1), (10**9, 32, 8, 128, 2, 7), (1000, 2, 1, 16, 2, 1))
    for memory, layers, k, h, size, batch in cases:
        each = batch * layers * 2 * k * h * size
        got, want = attempt(memory, layers, k, h, size, batch), memory // each
        if got == want:
            continue
        if got == memory // (each // 2):
            return "a position has a key and a value"
        if got == memory // (each // layers):
            return "every layer has keys and values of its own"
        if batch > 1 and got == memory // (each // batch):
            return "every sequence has a cache of its own"
        if got == memory / each:
            return f"a sequence has a whole number of positions: expected {want}, got {got:.2f}"
        where = (
            f"{memory} bytes, {layers} layers, K = {k}, H = {h}, {size} bytes, {batch} sequences"
        )
        return f"for {where} expected {want}; got {got}"
    return None


def _equal_parameters(attempt: Attempt) -> str | None:
    for d, n, k in ((512, 8, 8), (576, 9, 3), (96, 8, 4), (4096, 32, 8)):
        got, want = attempt(d, n, k), 2 * d / (n + k)
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        if abs(got - want) <= 1e-6 * want:
            continue
        where = f"for D = {d}, N = {n}, K = {k}"
        if abs(got - d / n) <= 1e-6 * want:
            return f"{where} heads of width D / N = {got:g} leave the layer smaller than 4 D²"
        return (
            f"{where} a width of {got:g} gives {2 * d * got * (n + k):g} weights, not {4 * d * d}"
        )
    return None


CHECKS: dict[str, Check] = {
    "parameters": _count_parameters,
    "balance": _balance,
    "longest": _longest,
    "equal-parameters": _equal_parameters,
}
"""The checks of the chapter on what heads cost, by the name of the exercise."""
