"""Checks of the exercises of the chapter on writing one token."""

from collections.abc import Iterator

import jax
import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("slowdown")
def _slowdown(attempt: Attempt) -> Iterator[str | None]:
    # Bytes of weights, layers, key heads, their width, bytes of a number, sequences, positions.
    cases = (
        (538_000_000, 30, 3, 64, 4, 16, 2048),
        (10**9, 2, 1, 16, 2, 7, 100),
        (10**6, 3, 5, 8, 2, 1, 0),
    )
    for weights, layers, k, h, size, batch, length in cases:
        share = batch * layers * length * 2 * k * h * size / weights
        hints = {
            "a step reads the weights too: an empty cache gives 1": share,
            "a position has a key and a value": 1 + share / 2,
            "every sequence has a cache of its own": 1 + share / batch,
            "every layer has keys and values of its own": 1 + share / layers,
        }
        got, where = attempt(weights, layers, k, h, size, batch, length), f"for {batch} sequences"
        yield judge(got, 1 + share, hints, f"{where} of {length} positions: ")


@exercise("absorb")
def _absorb(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    n, t, s, r, h = 3, 5, 7, 4, 2
    q, w_uk, z = (
        jax.numpy.asarray(rng.normal(size=shape), jax.numpy.float32)
        for shape in ((n, t, h), (r, n, h), (s, r))
    )
    got = attempt(q, w_uk, z)
    want = np.einsum("hia,rha,jr->hij", q, w_uk, z)
    if np.shape(got) != want.shape:
        yield f"expected the shape (N, T, S) = {want.shape}; got {np.shape(got)}"
    if not np.allclose(got, want, atol=1e-4):
        if np.allclose(got, want / h**0.5, atol=1e-4):
            yield "these are the scaled scores; the exercise asks for those before scaling"
        yield "the numbers differ from the products of queries and expanded keys"
    made = {
        tuple(sorted(made.aval.shape))
        for equation in jax.make_jaxpr(attempt)(q, w_uk, z).jaxpr.eqns
        for made in equation.outvars
    }
    if tuple(sorted((n, s, h))) in made:
        yield "the numbers are right, but the keys of all heads were made, (N, S, H) numbers"


@exercise("tokens")
def _tokens(attempt: Attempt) -> Iterator[str | None]:
    for p, n in ((0.5, 1), (0.8, 4), (0.0, 3), (1.0, 5), (0.7, 0)):
        want, before = sum(p**m for m in range(n + 1)), "all guesses before it were accepted"
        hints = {
            "the model itself adds one token after the last accepted one": want - 1,
            f"a guess counts only if {before}": 1 + n * p,
            f"a guess counts if {before}, and one token comes after": n * p,
        }
        yield judge(attempt(p, n), float(want), hints, f"for p = {p} and n = {n}: ")
