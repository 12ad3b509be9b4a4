"""Checks of the exercises of the chapter on splitting and combining heads."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, Check
from mha_book.heads import combine_heads, split_heads

__all__ = ["CHECKS"]


def _merge(attempt: Attempt) -> str | None:
    for shape in ((2, 3, 5), (7, 2, 3, 5)):  # two heads, three positions, width 5; a batch of 7
        heads = jnp.arange(np.prod(shape)).reshape(shape)
        got, want = np.asarray(attempt(heads)), np.asarray(combine_heads(heads))
        if got.shape != want.shape:
            return f"expected shape {want.shape} for input {heads.shape}; got {got.shape}"
        if not (got == want).all():
            return (
                "the shape is right, the entries are not: does row i hold position i of every head?"
            )
    return None


def _address(attempt: Attempt) -> str | None:
    length, num_heads, width = 7, 3, 5
    stored = np.arange(length * num_heads * width).reshape(length, num_heads * width)
    heads = np.asarray(split_heads(jnp.asarray(stored), num_heads))
    for h, i, a in np.ndindex(heads.shape):
        got, want = attempt(h, i, a, length, num_heads, width), heads[h, i, a]
        if np.shape(got) != ():
            return f"expected one whole number; got {got!r}"
        if got == want:
            continue
        hint = ""
        if got == (h * length + i) * width + a:
            hint = "; that is its place in a copy that stores one head after the other"
        sizes = f"T={length}, N={num_heads}, H={width}"
        return f"entry h={h}, i={i}, a={a} with {sizes} is number {want}; got {got}{hint}"
    return None


def _block(attempt: Attempt) -> str | None:
    num_heads, width = 3, 2
    for inputs in (num_heads * width, 5):
        weight = np.arange(num_heads * width * inputs).reshape(num_heads * width, inputs)
        for h in range(num_heads):
            got, want = np.asarray(attempt(weight, h, num_heads)), weight[h * width :][:width].T
            if got.shape == want.shape and (got == want).all():
                continue
            if got.shape == want.T.shape and (got == want.T).all():
                return "the right numbers, lying on their side: the result has the shape (D, H)"
            if got.shape == want.shape and (got == weight[:, h * width :][:, :width]).all():
                return (
                    "these are columns of the stored matrix, which belong to features of the "
                    "input: heads are runs of its rows"
                )
            if got.shape == want.shape and (got == weight[h::num_heads].T).all():
                return f"these are every {num_heads}rd row; a head is a run of neighbouring rows"
            if got.shape != want.shape:
                stored = f"a stored matrix {weight.shape} of {num_heads} heads"
                return f"expected shape {want.shape} for {stored}; got {got.shape}"
            return f"the shape is right, the entries of head {h} are not"
    return None


def _straight(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Reshape and forget the transpose."""
    return np.reshape(x, (num_heads, x.shape[0], x.shape[1] // num_heads))


def _interleaved(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Give head ``h`` every ``num_heads``-th feature from ``h`` on."""
    return np.moveaxis(np.reshape(x, (x.shape[0], -1, num_heads)), 2, 0)


def _positions_first(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Cut and leave the heads behind the positions."""
    return np.reshape(x, (x.shape[0], num_heads, x.shape[1] // num_heads))


def _backwards(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Number the heads from the last to the first."""
    return np.asarray(split_heads(jnp.asarray(x), num_heads))[::-1]


_WRONG = {
    "a reshape straight to (N, T, H)": _straight,
    "one that gives head h every N-th feature": _interleaved,
    "one that leaves the heads behind the positions, (T, N, H)": _positions_first,
    "one that numbers the heads backwards": _backwards,
}


def _judge(attempt: Attempt) -> str | None:
    def right(x: Any, num_heads: int) -> np.ndarray:
        return np.asarray(split_heads(jnp.asarray(x), num_heads))

    def said(split: Attempt) -> Any:
        try:
            return attempt(split)
        except Exception:  # a wrong split may make the test stumble, which rejects it too
            return False

    answer = attempt(right)
    if not isinstance(answer, bool | np.bool_) and np.shape(answer) != ():
        return f"expected True or False for a split; got {answer!r}"
    if not answer:
        return "your test rejects split_heads itself"
    for what, split in _WRONG.items():
        if said(split):
            hint = ""
            if split is _straight:
                hint = (
                    "; with one position, one head, a symmetric 2 by 2 matrix, or a round trip "
                    "alone, it cannot be told from the right one"
                )
            return f"your test accepts {what}{hint}"
    return None


CHECKS: dict[str, Check] = {
    "merge": _merge,
    "address": _address,
    "block": _block,
    "judge": _judge,
}
"""The checks of this chapter's exercises, by name."""
