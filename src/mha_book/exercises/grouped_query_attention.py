"""Checks of the exercises of the chapter on sharing keys and values."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mha_book.exercises import Check

__all__ = ["CHECKS"]

Attempt = Callable[..., Any]


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
        if got is ...:
            return None
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


def _slowdown(attempt: Attempt) -> str | None:
    # Bytes of weights, layers, key heads, their width, bytes of a number, sequences, positions.
    cases = (
        (538_000_000, 30, 3, 64, 4, 16, 2048),
        (10**9, 2, 1, 16, 2, 7, 100),
        (10**6, 3, 5, 8, 2, 1, 0),
    )
    for weights, layers, k, h, size, batch, length in cases:
        cache = batch * layers * length * 2 * k * h * size
        got, want = attempt(weights, layers, k, h, size, batch, length), 1 + cache / weights
        if got is ...:
            return None
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        if abs(got - want) <= 1e-6 * want:
            continue
        for value, said in (
            (cache / weights, "a step reads the weights too: an empty cache gives 1"),
            (1 + cache / 2 / weights, "a position has a key and a value"),
            (1 + cache / batch / weights, "every sequence has a cache of its own"),
            (1 + cache / layers / weights, "every layer has keys and values of its own"),
        ):
            if abs(got - value) <= 1e-9 * want:
                return said
        return f"for {batch} sequences of {length} positions expected {want:.4f}; got {got:.4f}"
    return None


def _absorb(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    n, t, s, r, h = 3, 5, 7, 4, 2
    q, w_uk, z = (
        jax.numpy.asarray(rng.normal(size=shape), jax.numpy.float32)
        for shape in ((n, t, h), (r, n, h), (s, r))
    )
    got = attempt(q, w_uk, z)
    if got is ...:
        return None
    want = np.einsum("hia,rha,jr->hij", q, w_uk, z)
    if np.shape(got) != want.shape:
        return f"expected the shape (N, T, S) = {want.shape}; got {np.shape(got)}"
    if not np.allclose(got, want, atol=1e-4):
        if np.allclose(got, want / h**0.5, atol=1e-4):
            return "these are the scaled scores; the exercise asks for those before scaling"
        return "the numbers differ from the products of queries and expanded keys"
    made = {
        tuple(sorted(made.aval.shape))
        for equation in jax.make_jaxpr(attempt)(q, w_uk, z).jaxpr.eqns
        for made in equation.outvars
    }
    if tuple(sorted((n, s, h))) in made:
        return "the numbers are right, but the keys of all heads were made, (N, S, H) numbers"
    return None


CHECKS: dict[str, Check] = {
    "key-head": _key_head,
    "pool": _pool,
    "slowdown": _slowdown,
    "absorb": _absorb,
}
"""The checks of the chapter on sharing keys and values, by the name of the exercise."""
