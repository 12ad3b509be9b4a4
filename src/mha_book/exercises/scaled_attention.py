"""Checks of the exercises of the chapter on scaled dot-product attention."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Check

__all__ = ["CHECKS"]


def _softmax(attempt: Callable[..., Any]) -> str | None:
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
            return f"expected the shape of the scores, {want.shape}; got {got.shape}"
        if not np.allclose(got, want, atol=1e-5):
            return f"scores {scores} gave {np.round(got, 3).tolist()}: {help_}"
    return None


def _visible(attempt: Callable[..., Any]) -> str | None:
    for queries, keys, offset, left in ((5, 5, 0, 4), (2, 7, 5, 6), (3, 7, 2, 1)):
        i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
        position = i + offset
        want = (j <= position) & (j >= position - left)
        case = f"T={queries}, S={keys}, offset={offset}, left={left}"
        got = np.asarray(attempt(queries, keys, offset, left))
        if got.shape != want.shape:
            return f"{case}: expected shape (T, S) = {want.shape}; got {got.shape}"
        if got.dtype != np.bool_:
            return f"{case}: expected a boolean array; got dtype {got.dtype}"
        if (got == want).all():
            continue
        wrong = {
            "True has to mean that the query may attend, and here it means that it may not": ~want,
            "query i stands at position i + offset; the offset is left out": (j <= i)
            & (j >= i - left),
            "the query has to see its own position too": (j < position) & (j >= position - left),
            "the window is one key too short: the key at distance `left` is visible": (
                j <= position
            )
            & (j > position - left),
            "the window is missing: keys further back than `left` are hidden": j <= position,
            "the query sees later keys": j >= position - left,
        }
        known = [text for text, array in wrong.items() if (got == array).all()]
        places = np.argwhere(got != want)
        return f"{case}: " + (
            known[0] if known else f"wrong at (i, j) = {tuple(places[0].tolist())}"
        )
    return None


def _cosine(attempt: Callable[..., Any]) -> str | None:
    for width, keys, weight in ((64, 32, 0.9), (512, 32, 0.9), (64, 100, 0.5)):
        score = math.log(weight * (keys - 1) / (1 - weight))
        want = score / math.sqrt(width)
        case = f"d_k={width}, S={keys}, weight={weight}"
        got = float(attempt(width, keys, weight))
        if math.isclose(got, want, rel_tol=1e-4):
            continue
        wrong = {
            "that is the score itself; the score is the cosine times sqrt(d_k)": score,
            "the norms multiply to d_k, and the scale takes away sqrt(d_k), not all of it": score
            / width,
            "there are S - 1 other keys, not S": math.log(weight * keys / (1 - weight))
            / math.sqrt(width),
            "the other keys count too: each adds exp(0) = 1 to the sum": math.log(
                weight / (1 - weight)
            )
            / math.sqrt(width),
        }
        known = [text for text, value in wrong.items() if math.isclose(got, value, rel_tol=1e-4)]
        return f"{case}: " + (known[0] if known else f"expected {want:.4f}; got {got:.4f}")
    return None


def _temperature(attempt: Callable[..., Any]) -> str | None:
    scores = np.random.default_rng(0).normal(size=(3, 7, 11)) * np.array([0.5, 1, 4])[:, None, None]
    limit = math.log(scores.shape[-1])

    def mean_entropy(factor: float) -> float:
        shifted = factor * scores - (factor * scores).max(-1, keepdims=True)
        log_weights = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return float(-(np.exp(log_weights) * log_weights).sum(-1).mean())

    for share in (0.8, 0.5, 0.2):
        factor = float(attempt(jnp.asarray(scores, jnp.float32), share * limit))
        if not 0 < factor < math.inf:
            return f"expected a positive factor; got {factor}"
        got = mean_entropy(factor)
        if not abs(got - share * limit) <= 1e-2:
            aside = "the mean entropy"
            if abs(mean_entropy(1 / factor) - share * limit) <= 1e-2:
                aside = "1/factor would do: the factor multiplies the scores; the mean entropy"
            return f"{aside} at factor {factor:.3f} is {got:.3f}; wanted {share * limit:.3f}"
    return None


CHECKS: dict[str, Check] = {
    "softmax": _softmax,
    "visible": _visible,
    "cosine": _cosine,
    "temperature": _temperature,
}
"""The checks of this chapter's exercises, by name."""
