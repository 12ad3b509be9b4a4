"""Checks of the exercises of the chapter on sharing keys and values."""

from collections.abc import Iterator

import jax
import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("key-head")
def _key_head(attempt: Attempt) -> Iterator[str | None]:
    for n, k in ((4, 2), (9, 3), (6, 2), (5, 5), (7, 1)):
        dealt = [h % k for h in range(n)]
        hints = {
            "this deals the heads out in turn; heads of a group are neighbours": dealt,
            f"a group has N / K = {n // k} heads, not K = {k}": [h // k for h in range(n)],
            "a head has a whole number: round down": [h * k / n for h in range(n)],
        }
        got, want = [attempt(h, n, k) for h in range(n)], [h * k // n for h in range(n)]
        yield judge(got, want, hints, f"for N = {n}, K = {k} ")


@exercise("pool")
def _pool(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    for n, k in ((6, 2), (6, 3), (4, 1), (3, 3)):
        w_k = rng.normal(size=(5, n, 7)).astype(np.float32)
        groups, dealt = w_k.reshape(5, k, n // k, 7), w_k.reshape(5, n // k, k, 7)
        neighbours = f"this averages each {k}-th head; heads of a group are neighbours"
        hints = {
            neighbours: dealt.mean(axis=1),
            "this is the sum of each group, not its mean": groups.sum(axis=2),
            "this picks the first head of each group and ignores the others": groups[:, :, 0],
        }
        got, where = attempt(jax.numpy.asarray(w_k), k), f"for D = 5, N = {n}, H = 7 and k = {k} "
        yield judge(got, groups.mean(axis=2), hints, where)


@exercise("unshare")
def _unshare(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    for n, k in ((6, 2), (9, 3), (4, 1), (3, 3)):
        w_k = rng.normal(size=(5, k, 7)).astype(np.float32)
        turns = "these are the KV heads in turn; heads of a group are neighbours"
        hints = {turns: np.tile(w_k, (1, n // k, 1))}
        got, want = attempt(jax.numpy.asarray(w_k), n), np.repeat(w_k, n // k, axis=1)
        yield judge(got, want, hints, f"for {n} query heads and {k} KV heads ")
