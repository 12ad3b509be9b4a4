"""Checks of the exercises of the chapter on gradients."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise
from mha_book.notation import Equation


def _draw(seed: int, *shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def _close(got: Any, want: jax.Array) -> bool:
    """Whether an answer has the right shape and numbers."""
    return np.shape(got) == want.shape and bool(np.allclose(got, want, rtol=1e-3, atol=1e-4))


@exercise("values")
def _values(attempt: Attempt) -> Iterator[str | None]:
    got = attempt()
    if not isinstance(got, str):
        yield f"expected LaTeX as a string; got {got!r}"
    own = Equation(got)
    want = Equation(r"O^{kgic} = A^{kgij} V^{kjc}").gradient("V")
    if own.left != want.left:
        yield f"expected the left side of {want.latex}; got that of {own.latex}"
    if set(own.operands) != set(want.operands):
        yield f"expected the weights and dL/dO on the right; got {', '.join(own.operands)}"
    weights, above = _draw(1, (2, 3, 5, 7), (2, 3, 5, 4))
    arrays = {"A": weights, "dL_dO": above}
    if not _close(own(arrays), want(arrays)):
        yield f"{own.latex} runs and gives other numbers: which indices are summed?"


@exercise("sink")
def _sink(attempt: Attempt) -> Iterator[str | None]:
    scores, d_weights = _draw(2, (3, 5), (3, 5))

    def softmax(scores: jax.Array) -> jax.Array:
        e = jnp.exp(scores)
        return e / (1 + e.sum(axis=-1, keepdims=True))

    weights, pull = jax.vjp(softmax, scores)
    (want,) = pull(d_weights)
    got = attempt(weights, d_weights)
    if np.shape(got) != want.shape:
        yield f"expected an array of shape {want.shape}; got {np.shape(got)}"
    if _close(got, weights * (1 - weights) * d_weights):
        yield "that is the diagonal of the Jacobian: a score changes the other weights too"
    if not _close(got, want):
        yield "the shape is right, the numbers are not: how does weight j' depend on score j?"


@exercise("block")
def _block(attempt: Attempt) -> Iterator[str | None]:
    q, k, v, d_out = _draw(3, (3, 4), (7, 4), (7, 5), (3, 5))

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.softmax(q @ k.T / 2, axis=-1) @ v

    output, pull = jax.vjp(attention, q, k, v)
    lse = jax.nn.logsumexp(q @ k.T / 2, axis=-1)
    inner = (output * d_out).sum(axis=-1)
    parts = []
    for block in (slice(0, 2), slice(2, 7)):
        got = attempt(q, k[block], v[block], d_out, lse, inner)
        if not isinstance(got, tuple | list) or len(got) != 3:
            yield f"expected three arrays, d_q, d_k and d_v; got {type(got).__name__}"
        parts.append(got)
    first, second = parts
    if any(np.shape(one) != q.shape for one in (first[0], second[0])):
        yield f"expected d_q of shape {q.shape}; got {np.shape(first[0])}"
    of_keys = (jnp.concatenate((first[at], second[at])) for at in (1, 2))
    found = (first[0] + second[0], *of_keys)
    for name, got, want in zip(("d_q", "d_k", "d_v"), found, pull(d_out), strict=True):
        if not _close(got, want):
            yield f"{name} of two blocks together is not that of all keys"
