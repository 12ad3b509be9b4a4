"""Checks of the exercises of the chapter on scaled dot-product attention."""

import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("softmax")
def _softmax(attempt: Attempt) -> Iterator[str | None]:
    for scores, help_ in (
        ([[0.0, math.log(3.0)]], "every score shifts the others down: divide by the row's sum"),
        (
            [[0.0, 0.0], [0.0, math.log(3.0)]],
            "each row has a sum of its own: sum over the last axis",
        ),
        ([[1000.0, 1000.0 + math.log(3.0)]], "exp(1000) is inf; subtract the row's maximum first"),
        ([[-1000.0, -1000.0 + math.log(3.0)]], "exp(-1000) is 0; subtract the row's maximum first"),
        ([[0.0, -math.inf]], "a score of -inf hides its key: weight 0"),
        ([[1.0, 0.0], [-math.inf, -math.inf]], "an empty row, all scores -inf, has weights 0"),
    ):
        row = np.asarray(scores)
        with np.errstate(all="ignore"):
            finite = np.where(np.isneginf(row.max(-1, keepdims=True)), 0.0, row)
            shifted = np.where(
                np.isneginf(row), 0.0, np.exp(finite - finite.max(-1, keepdims=True))
            )
            want = shifted / np.maximum(shifted.sum(-1, keepdims=True), 1e-30)
        got = np.asarray(attempt(jnp.asarray(row, jnp.float32)), np.float64)
        if got.shape != want.shape:
            yield f"expected the shape of the scores, {want.shape}; got {got.shape}"
        if not np.allclose(got, want, atol=1e-5):
            yield f"scores {scores} gave {np.round(got, 3).tolist()}: {help_}"


@exercise("visible")
def _visible(attempt: Attempt) -> Iterator[str | None]:
    for queries, keys, offset, left in ((5, 5, 0, 4), (2, 7, 5, 6), (3, 7, 2, 1)):
        i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
        position = i + offset
        want = (j <= position) & (j >= position - left)
        case = f"T={queries}, S={keys}, offset={offset}, left={left}: "
        got = np.asarray(attempt(queries, keys, offset, left))
        if got.dtype != np.bool_:
            yield f"{case}expected a boolean array; got dtype {got.dtype}"
        turned = "True has to mean that the query may attend, and here it means that it may not"
        short = "the window is one key too short: the key at distance `left` is visible"
        no_offset = "query i stands at position i + offset; the offset is left out"
        hints = {
            turned: ~want,
            no_offset: (j <= i) & (j >= i - left),
            "the query has to see its own position too": (j < position) & (j >= position - left),
            short: (j <= position) & (j > position - left),
            "the window is missing: keys further back than `left` are hidden": j <= position,
            "the query sees later keys": j >= position - left,
        }
        yield judge(got, want, hints, case)


@exercise("empty")
def _empty(attempt: Attempt) -> Iterator[str | None]:
    mask = np.array([[True, False], [False, False], [True, True]])
    good = np.array([[8.0, 0.0, 1.0], [0.0, 0.0, 0.0], [4.0, 4.0, 2.0]])
    for found in (np.nan, 5.0):
        output = good.copy()
        output[1] = found
        case = f"with {found} in the empty row"
        got = np.asarray(attempt(jnp.asarray(output, jnp.float32), jnp.asarray(mask)), np.float64)
        if got.shape == good.shape and np.isnan(got[1]).any():
            yield f"{case}: NaN is left; 0 times NaN is NaN, so choose instead of multiplying"
        if got.shape == good.shape and not np.allclose(got[1], 0):
            yield f"{case}: row 1 sees no key and has to be zero; got {got[1].tolist()}"
        stay = "rows that see a key, one or all, stay as they were"
        yield judge(got, good, {}, f"{case}: ", stay)
