"""Checks of the exercises of the chapter on sharing keys and values."""

import jax
import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _key_head(attempt: Attempt) -> str | None:
    for n, k in ((4, 2), (9, 3), (6, 2), (5, 5), (7, 1)):
        got = [attempt(h, n, k) for h in range(n)]
        want = [h // (n // k) for h in range(n)]
        if got == want:
            continue
        where = f"for N = {n}, K = {k}"
        if got == [h % k for h in range(n)]:
            return f"{where} this deals the heads out in turn; heads of a group are neighbours"
        if got == [h // k for h in range(n)]:
            return f"{where} a group has N / K = {n // k} heads, not K = {k}"
        if got == [h * k / n for h in range(n)]:
            return f"{where} a head has a whole number: round down"
        return f"{where} expected {want}; got {got}"
    return None


def _pool(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    for n, k in ((6, 2), (6, 3), (4, 1), (3, 3)):
        w_k = rng.normal(size=(5, n, 7)).astype(np.float32)
        got = attempt(jax.numpy.asarray(w_k), k)
        got, groups = np.asarray(got), w_k.reshape(5, k, n // k, 7)
        where = f"for D = 5, N = {n}, H = 7 and k = {k}"
        if got.shape != (5, k, 7):
            return f"{where} expected the shape (5, {k}, 7); got {got.shape}"
        if np.allclose(got, groups.mean(axis=2), atol=1e-5):
            continue
        if np.allclose(got, w_k.reshape(5, n // k, k, 7).mean(axis=1), atol=1e-5):
            return f"{where} this averages each {k}-th head; heads of a group are neighbours"
        if np.allclose(got, groups.sum(axis=2), atol=1e-5):
            return f"{where} this is the sum of each group, not its mean"
        if np.allclose(got, groups[:, :, 0], atol=1e-5):
            return f"{where} this picks the first head of each group and ignores the others"
        return f"{where} the numbers are not the means of the groups"
    return None


def _unshare(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    for n, k in ((6, 2), (9, 3), (4, 1), (3, 3)):
        w_k = rng.normal(size=(5, k, 7)).astype(np.float32)
        got = attempt(jax.numpy.asarray(w_k), n)
        got = np.asarray(got)
        where = f"for {n} query heads and {k} key heads"
        if got.shape != (5, n, 7):
            return f"{where} expected the shape (5, {n}, 7); got {got.shape}"
        if np.allclose(got, np.repeat(w_k, n // k, axis=1)):
            continue
        if np.allclose(got, np.tile(w_k, (1, n // k, 1))):
            return f"{where} these are the key heads in turn; heads of a group are neighbours"
        return f"{where} the copies are not those that the query heads read"
    return None


CHECKS: dict[str, Check] = {
    "key-head": _key_head,
    "pool": _pool,
    "unshare": _unshare,
}
"""The checks of the chapter on sharing keys and values, by the name of the exercise."""
