"""Checks of the exercises of the chapter on splitting and combining heads."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.conformance import mutant
from mha_book.conformance.oracle import heads as cut
from mha_book.exercises import Attempt, exercise, judge
from mha_book.heads import combine_heads, split_heads


@exercise("merge")
def _merge(attempt: Attempt) -> Iterator[str | None]:
    for shape in ((2, 3, 5), (7, 2, 3, 5)):  # two heads, three positions, width 5; a batch of 7
        heads = jnp.arange(np.prod(shape)).reshape(shape)
        got, want = np.asarray(attempt(heads)), np.asarray(combine_heads(heads))
        if got.shape != want.shape:
            yield f"expected shape {want.shape} for input {heads.shape}; got {got.shape}"
        if not (got == want).all():
            yield (
                "the shape is right, the entries are not: does row i hold position i of every head?"
            )


@exercise("address")
def _address(attempt: Attempt) -> Iterator[str | None]:
    length, num_heads, width = 7, 3, 5
    stored = np.arange(length * num_heads * width).reshape(length, num_heads * width)
    heads = np.asarray(split_heads(jnp.asarray(stored), num_heads))
    for h, i, a in np.ndindex(heads.shape):
        got, want = attempt(h, i, a, length, num_heads, width), int(heads[h, i, a])
        if np.shape(got) != ():
            yield f"expected one whole number; got {got!r}"
        copied = "that is its place in a copy that stores one head after the other"
        where = f"entry h={h}, i={i}, a={a} with T={length}, N={num_heads}, H={width}: "
        yield judge(got, want, {copied: (h * length + i) * width + a}, where)


@exercise("block")
def _block(attempt: Attempt) -> Iterator[str | None]:
    num_heads, width = 3, 2
    for inputs in (num_heads * width, 5):
        weight = np.arange(num_heads * width * inputs).reshape(num_heads * width, inputs)
        for h in range(num_heads):
            want = weight[h * width :][:width].T
            columns = (
                "these are columns of the stored matrix, which belong to features of the input: "
                "heads are runs of its rows"
            )
            every = f"these are every {num_heads}rd row; a head is a run of neighbouring rows"
            hints = {
                "the right numbers, lying on their side: the result has the shape (D, H)": want.T,
                columns: weight[:, h * width :][:, :width],
                every: weight[h::num_heads].T,
            }
            yield judge(attempt(weight, h, num_heads), want, hints, f"head {h}: ")


def _known(id: str) -> Attempt:
    """A wrong split of the checker's catalog."""
    return lambda x, num_heads: mutant(id).steps["split"](cut(np.asarray(x)[None], num_heads))[0]


def _positions_first(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Cut and leave the heads behind the positions."""
    return np.reshape(x, (x.shape[0], num_heads, x.shape[1] // num_heads))


def _backwards(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Number the heads from the last to the first."""
    return np.asarray(split_heads(jnp.asarray(x), num_heads))[::-1]


_straight = _known("split-without-transpose")
_WRONG = {
    "a reshape straight to (N, T, H)": _straight,
    "one that gives head h every N-th feature": _known("split-interleaved"),
    "one that leaves the heads behind the positions, (T, N, H)": _positions_first,
    "one that numbers the heads backwards": _backwards,
}


@exercise("judge")
def _judge(attempt: Attempt) -> Iterator[str | None]:
    def right(x: Any, num_heads: int) -> np.ndarray:
        return np.asarray(split_heads(jnp.asarray(x), num_heads))

    def said(split: Attempt) -> Any:
        try:
            return attempt(split)
        except Exception:  # a wrong split may make the test stumble, which rejects it too
            return False

    answer = attempt(right)
    if not isinstance(answer, bool | np.bool_) and np.shape(answer) != ():
        yield f"expected True or False for a split; got {answer!r}"
    if not answer:
        yield "your test rejects split_heads itself"
    for what, split in _WRONG.items():
        if said(split):
            hint = ""
            if split is _straight:
                hint = (
                    "; with one position, one head, a symmetric 2 by 2 matrix, or a round trip "
                    "alone, it cannot be told from the right one"
                )
            yield f"your test accepts {what}{hint}"
