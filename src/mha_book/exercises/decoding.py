"""Checks of the exercises of the chapter on writing one token."""

import jax
import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


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


def _tokens(attempt: Attempt) -> str | None:
    for p, n in ((0.5, 1), (0.8, 4), (0.0, 3), (1.0, 5), (0.7, 0)):
        got, want = attempt(p, n), sum(p**m for m in range(n + 1))
        if not isinstance(got, (int, float)):
            return f"expected a number; got {type(got).__name__}"
        if abs(got - want) <= 1e-5 * want:
            continue
        where = f"for p = {p} and n = {n}"
        for value, said in (
            (want - 1, "the model itself adds one token after the last accepted one"),
            (1 + n * p, "a guess counts only if all guesses before it were accepted"),
            (n * p, "a guess counts only if all guesses before it were accepted"),
        ):
            if abs(got - value) <= 1e-5:
                return f"{where}: {said}"
        return f"{where} expected {want:.4f}; got {got:.4f}"
    return None


CHECKS: dict[str, Check] = {"slowdown": _slowdown, "absorb": _absorb, "tokens": _tokens}
"""The checks of the chapter on writing one token, by the name of the exercise."""
