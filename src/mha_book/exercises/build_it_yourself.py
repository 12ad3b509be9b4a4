"""Checks of the exercises of the chapter that builds a language model."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("cache-elements")
def _cache_elements(attempt: Attempt) -> Iterator[str | None]:
    hints = {"keys and values are both kept: ": 672, "every block has a cache of its own: ": 448}
    yield judge(attempt(3, 2, 16, 7), 1344, hints)
    yield judge(attempt(5, 3, 11, 2), 660, {})


@exercise("sees-the-future")
def _sees_the_future(attempt: Attempt) -> Iterator[str | None]:
    ids = np.array([[5, 2, 7, 3, 1], [4, 4, 0, 6, 2]])

    def past(ids: Any) -> Any:  # the logits at a position depend on all up to it
        return jnp.cumsum(jnp.sin(jnp.asarray(ids, jnp.float32)), axis=1)[..., None]

    def last(ids: Any) -> Any:  # and here on the last one too
        return past(ids) + 0.01 * past(ids)[:, -1:]

    if attempt(past, ids):
        yield "this model sees only the past, and its last logits may change with the last token"
    if not attempt(last, ids):
        yield "here every position depends a little on the last token: change that one and compare"


@exercise("top-k")
def _top_k(attempt: Attempt) -> Iterator[str | None]:
    logits = np.array([0.5, 2.0, -1.0, 1.0, 1.5])
    got = np.asarray(attempt(jnp.asarray(logits, jnp.float32), 2), np.float64)
    zeros = np.array([0.0, 2.0, 0.0, 0.0, 1.5])
    smallest = np.array([0.5, -np.inf, -1.0, -np.inf, -np.inf])
    zero = "a logit of 0 still has a probability, one of minus infinity has none: "
    hints = {"those are the two least likely: ": smallest, zero: zeros}
    otherwise = "keep the k largest logits where they are; all others become minus infinity"
    yield judge(got, np.array([-np.inf, 2.0, -np.inf, -np.inf, 1.5]), hints, "", otherwise)
    got = np.asarray(attempt(jnp.asarray(logits, jnp.float32), 5), np.float64)
    yield judge(got, logits, {}, "with k = 5 nothing changes: ")
