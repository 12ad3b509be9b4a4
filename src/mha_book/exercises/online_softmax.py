"""Checks of the exercises of the chapter on attention without stored scores."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_book.exercises import Attempt, exercise, judge

ROWS, WIDTH = 3, 2


def _softmax_sums(scores: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the largest score of each row and both sums relative to it, in float64."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    return top, powers.sum(axis=-1, keepdims=True), powers @ values


def _near(got: Any, want: np.ndarray) -> bool:
    return bool(np.allclose(np.asarray(got, np.float64), want, rtol=1e-5, atol=1e-6))


def _arrays(attempt: Attempt, args: tuple[Any, ...], shapes: list[tuple[int, ...]]) -> Any:
    """Call the attempt; return its arrays, or a sentence on what came instead."""
    got = attempt(*(np.asarray(x, np.float32) for x in args))
    if not isinstance(got, (tuple, list)) or len(got) != len(shapes):
        return f"expected {len(shapes)} arrays; got {type(got).__name__}"
    found = [np.shape(x) for x in got]
    if found != shapes:
        return f"expected the shapes {shapes}; got {found}"
    return [np.asarray(x, np.float64) for x in got]


@exercise("update")
def _update(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(5)
    scores, values = 2 * rng.normal(size=(ROWS, 7)), rng.normal(size=(7, WIDTH))
    scores[0, 0], scores[1, 6] = 5.0, 5.0  # a maximum that stays, and one that rises
    hidden = np.full((ROWS, 3), -np.inf)
    for name, first, block in (
        ("a block with a larger score", scores[:, :4], scores[:, 4:]),
        ("the first block", scores[:, :0], scores[:, :4]),
        ("a block that is hidden, -inf throughout, after one that is not", scores[:, :4], hidden),
        ("a block that is hidden, -inf throughout, when nothing is known", scores[:, :0], hidden),
    ):
        count, size = first.shape[1], block.shape[1]
        old, new = values[:count], values[count : count + size]
        before = _softmax_sums(first, old)
        with np.errstate(invalid="ignore"):
            got = _arrays(attempt, (*before, block, new), [(ROWS, 1), (ROWS, 1), (ROWS, WIDTH)])
        if isinstance(got, str):
            yield got
        want = _softmax_sums(np.concatenate([first, block], axis=1), np.concatenate([old, new]))
        if any(np.isnan(x).any() for x in got):
            yield f"{name}: not a number; -inf minus -inf is none, subtract 0 instead"
        own = {"that is the block's own, the old one counts too": _softmax_sums(block, new)[0]}
        where = f"{name}: "
        yield judge(got[0], want[0], own, f"{where}the maximum is wrong: ")
        with np.errstate(invalid="ignore"):
            now = np.exp(block - np.where(np.isneginf(want[0]), 0.0, want[0]))
        for what, one, old_sum, addition, right in (
            ("total", got[1], before[1], now.sum(axis=-1, keepdims=True), want[1]),
            ("output", got[2], before[2], now @ new, want[2]),
        ):
            fading = f"the old {what} must be rescaled by exp(old maximum - new maximum)"
            hints = {fading: old_sum + addition, f"the old {what} is lost": addition}
            yield judge(one, right, hints, where, f"the {what} is wrong")


@exercise("merge")
def _merge(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(6)
    for name, shift, empty in (
        ("two parts", 0.0, None),
        ("large log-sum-exps", 500.0, None),
        ("a row of the first part empty", 0.0, 0),
    ):
        lses = [shift + 2 * rng.normal(size=ROWS) for _ in range(2)]
        outputs = [rng.normal(size=(ROWS, WIDTH)) for _ in range(2)]
        if empty is not None:
            lses[0][empty], outputs[0][empty] = -np.inf, 0.0
        lse = np.logaddexp(*lses)
        shares = [np.exp(x - lse)[:, None] for x in lses]
        output = shares[0] * outputs[0] + shares[1] * outputs[1]
        with np.errstate(all="ignore"):
            got = _arrays(
                attempt, (outputs[0], lses[0], outputs[1], lses[1]), [(ROWS, WIDTH), (ROWS,)]
            )
        if isinstance(got, str):
            yield got
        if _near(got[0], output) and _near(got[1], lse):
            continue
        if not all(np.isfinite(x).all() for x in got):
            why = (
                "an exponential overflows; take the larger one out" if shift else "-inf is special"
            )
            yield f"{name}: not a finite number: {why}"
        if _near(got[0], (outputs[0] + outputs[1]) / 2):
            yield f"{name}: the parts do not count alike; weigh each by exp of its log-sum-exp"
        if _near(got[0], output):
            yield f"{name}: the output is right, the log-sum-exp is not"
        yield f"{name}: the output is wrong"
    nothing = np.zeros((ROWS, WIDTH)), np.full(ROWS, -np.inf)
    with np.errstate(all="ignore"):
        got = _arrays(attempt, (*nothing, *nothing), [(ROWS, WIDTH), (ROWS,)])
    if isinstance(got, str):
        yield got
    if not _near(got[0], nothing[0]) or not np.isneginf(got[1]).all():
        yield "a row that is empty in both parts has the output 0 and the log-sum-exp -inf"


@exercise("visited")
def _visited(attempt: Attempt) -> Iterator[str | None]:
    for length, window, rows, keys in (
        (24, 24, 4, 4), (24, 5, 4, 4), (24, 6, 3, 8), (24, 1, 8, 2), (60, 13, 10, 6),
    ):  # fmt: skip
        i, j = np.arange(length)[:, None], np.arange(length)
        visible = (j <= i) & (j > i - window)

        def blocks(pairs: np.ndarray, shape: tuple[int, int] = (rows, keys)) -> int:
            cut = pairs.reshape(len(pairs) // shape[0], shape[0], -1, shape[1])
            return int(cut.any(axis=(1, 3)).sum())

        every, wider = (length // rows) * (length // keys), (j <= i) & (j >= i - window)
        hints = {
            "these are all blocks; many hold no visible pair": every,
            "under the window the first blocks of keys are hidden too": blocks(j <= i),
            f"a window of {window} has {window} keys, the query's own included": blocks(wider),
            "these are visible pairs of positions, not pairs of blocks": int(visible.sum()),
        }
        sizes = f"{length} positions, window {window}, blocks of {rows} queries and {keys} keys: "
        yield judge(attempt(length, window, rows, keys), blocks(visible), hints, sizes)


@exercise("rises")
def _rises(attempt: Attempt) -> Iterator[str | None]:
    for n in (1, 2, 3, 20, 1000):
        want = float(sum(1 / count for count in range(2, n + 1)))
        hints = {"one too many; the first score is no rise": want + 1}
        if n > 2:
            hints["near it for many scores; exactly it is a sum"] = math.log(n)
        yield judge(attempt(n), want, hints, f"n = {n}: ")
