"""Checks of the exercises of the chapter on syntax and meaning."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("words")
def _words(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    for owner in ([0, 0, 1], [0, 1, 1, 1, 2]):
        weights = rng.uniform(size=(len(owner), len(owner)))
        weights /= weights.sum(1, keepdims=True)
        member = (np.array(owner)[:, None] == np.arange(max(owner) + 1)).astype(float)
        mean = member / member.sum(0)
        average = "average over the query's tokens, so that a row still adds up to 1"
        hints = {
            average: member.T @ weights @ member,
            "sum over the key's tokens": mean.T @ weights @ mean,
        }
        got, want = attempt(weights, list(owner)), mean.T @ weights @ member
        yield judge(got, want, hints, f"for tokens of the words {owner} ")


@exercise("offset")
def _offset(attempt: Attempt) -> Iterator[str | None]:
    for queries, answers, want in (
        ([1, 3, 6, 8], [0, 2, 4, 7], 0.75),
        ([5, 5, 5], [1, 2, 3], 1 / 3),
        ([2, 9], [4, 11], 1.0),
    ):
        fixed = np.unique(answers, return_counts=True)[1].max() / len(answers)
        hints = {"that is the best fixed place": fixed}
        where = f"queries {queries}, answers {answers}: "
        yield judge(attempt(list(queries), list(answers)), want, hints, where)


@exercise("won")
def _won(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(1)
    for weights in (np.eye(3), np.ones((4, 4)), rng.uniform(size=(6, 6))):
        pairs, own = len(weights) * (len(weights) - 1), np.diagonal(weights)
        wins = float((own[:, None] > weights).sum())
        of_columns = (own[None] > weights).sum() / pairs
        hints = {
            "a word is not compared with itself": wins / weights.size,
            "compare within a row, what one second word gives": of_columns,
            "a tie is no win": 1.0,
        }
        where = f"for {len(weights)} pairs "
        yield judge(attempt(weights.copy()), wins / pairs, hints, where)
