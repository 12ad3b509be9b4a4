"""What every timed output is checked against: attention and its gradient in float64 NumPy.

A few hundred query rows at a time, or a sample of them where all would take minutes.  It shares no
code with the package.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# Largest deviation from float64, relative to the largest entry, that a timed output may have.
TOLERANCES = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 6e-3}
MOST_PAIRS = 2**30  # (query, key) pairs of all heads that are checked in full: about a minute
SAMPLED_ROWS = 64


def _weights(scores: np.ndarray, rows: np.ndarray, is_causal: bool) -> np.ndarray:
    """Softmax over the last axis; where causal, row i sees the keys j ≤ i."""
    if is_causal:
        hidden = np.arange(scores.shape[1])[None, :] > rows[:, None]
        scores = np.where(hidden, -np.inf, scores)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention_float64(
    query, key, value, *, is_causal, cotangent=None, rows=None, block=512
) -> tuple[np.ndarray, ...]:
    r"""Scaled dot-product attention, heads first, and its gradients on request.

    Where `rows` names some of the queries, these alone are there: the output has them, and of the
    gradients that of the query is whole.

    With $P = \mathrm{softmax}(Q K^\top / \sqrt{H})$, $O = P V$ and the cotangent $\bar O$:

    $$ \bar V = P^\top \bar O, \quad
       \bar S = P \circ (\bar O V^\top - \mathrm{rowsum}(\bar O \circ O)), \quad
       \bar Q = \bar S K / \sqrt{H}, \quad \bar K = \bar S^\top Q / \sqrt{H} $$
    """
    rows = np.arange(query.shape[2]) if rows is None else np.asarray(rows)
    query = np.asarray(query)[:, :, rows]
    q, k, v = (np.asarray(x).astype(np.float64) for x in (query, key, value))
    scale, group = 1 / np.sqrt(q.shape[-1]), q.shape[1] // k.shape[1]
    output = np.zeros(q.shape[:-1] + v.shape[-1:])
    gradients = tuple(np.zeros_like(x) for x in (q, k, v))
    bar = None if cotangent is None else np.asarray(cotangent)[:, :, rows].astype(np.float64)
    for entry, head in np.ndindex(q.shape[:2]):
        for start in range(0, len(rows), block):
            some, places = (entry, head, slice(start, start + block)), rows[start : start + block]
            seen = (entry, head // group, slice(places[-1] + 1 if is_causal else None))
            weights = _weights(q[some] @ k[seen].T * scale, places, is_causal)  # (rows, S)
            output[some] = weights @ v[seen]
            if bar is None:
                continue
            inner = (bar[some] * output[some]).sum(axis=-1, keepdims=True)
            scores = weights * (bar[some] @ v[seen].T - inner) * scale
            gradients[0][some] = scores @ k[seen]
            gradients[1][seen] += scores.T @ q[some]
            gradients[2][seen] += weights.T @ bar[some]
    return (output,) if bar is None else (output, *gradients)


def layer_float64(x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    """A whole layer, nothing masked, of `x` (B, T, D) and of (D, N, H) thrice and (N, H, D)."""
    x, *inner, w_o = (array.astype(np.float64) for array in (x, *weights))
    operands = (np.einsum("btd,dnh->bnth", x, w, optimize=True) for w in inner)
    output = attention_float64(*operands, is_causal=False)[0]
    return np.einsum("bnth,nhd->btd", output, w_o, optimize=True)


class Piece(NamedTuple):
    """What some entries of an output must be."""

    output: int  # which output, counted from 0
    where: Any  # index of the entries
    values: np.ndarray  # what they must be, in float64


def attention_pieces(
    query, key, value, *, is_causal, cotangent=None, most_pairs=MOST_PAIRS,
    sampled_rows=SAMPLED_ROWS,
) -> tuple[str, list[Piece]]:  # fmt: skip
    """What `attention_float64` gives, or as much of it as can be afforded.

    Up to `most_pairs` (query, key) pairs of all heads together it is everything.  Beyond, it is
    a sample of the query rows of every head, the first and the last among them, with the output
    and the gradient of the query.
    """
    batch, heads, length = query.shape[:3]
    key_length = key.shape[2]
    arguments = {"is_causal": is_causal, "cotangent": cotangent}
    if batch * heads * length * key_length <= most_pairs:
        found = attention_float64(query, key, value, **arguments)
        return "everything", [Piece(n, ..., values) for n, values in enumerate(found)]
    rng = np.random.default_rng(length)
    inner = rng.choice(np.arange(1, length - 1), min(sampled_rows, length) - 2, replace=False)
    rows = np.sort([0, *inner, length - 1])
    found = attention_float64(query, key, value, **arguments, rows=rows)[:2]
    at_rows = (slice(None), slice(None), rows)
    pieces = [Piece(n, at_rows, values) for n, values in enumerate(found)]
    return f"{len(rows)} query rows of every head", pieces


class WrongOutput(ValueError):
    """A contender's output differs from the float64 reference: its time means nothing."""


def as_numpy(array: Any) -> np.ndarray:
    """An array of JAX, NumPy or torch, on whatever device, as NumPy has it.

    torch has no NumPy form of bfloat16; its arrays of half precision come in float32.
    """
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if array.element_size() < 4 else array
    return np.asarray(array)


def largest_error(outputs: Sequence[Any], expected: Sequence[np.ndarray]) -> float:
    r"""Largest deviation from the expected arrays, each relative to its largest entry.

    $$ \max_n \; \max |x_n - e_n| \,/\, \max |e_n| $$

    Returns infinity where an output holds NaN or has another shape.
    """
    if len(outputs) != len(expected):
        return math.inf
    errors = [0.0]
    for output, wanted in zip(outputs, expected, strict=True):
        got = as_numpy(output).astype(np.float64)
        if got.shape != wanted.shape or not np.isfinite(got).all():
            return math.inf
        errors.append(float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-300)))
    return max(errors)


def verify(name, outputs, expected, tolerance) -> float:
    """The largest error of a contender's outputs."""
    error = largest_error(outputs, expected)
    if not error <= tolerance:
        raise WrongOutput(
            f"{name}: expected outputs within {tolerance:g} of float64, got an error of {error:g}"
        )
    return error


def verify_pieces(name, outputs, expected, tolerance) -> float:
    """The same where some entries of the outputs are compared."""
    arrays = [as_numpy(output) for output in outputs]
    found = [arrays[piece.output][piece.where] for piece in expected]
    return verify(name, found, [piece.values for piece in expected], tolerance)
