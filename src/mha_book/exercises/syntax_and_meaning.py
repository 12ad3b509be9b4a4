"""Checks of the exercises of the chapter on syntax and meaning."""

import numpy as np

from mha_book.exercises import Attempt, Check
from mha_book.specialization.words import word_weights

__all__ = ["CHECKS"]


def _words(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    for owner in ([0, 0, 1], [0, 1, 1, 1, 2]):
        weights = rng.uniform(size=(len(owner), len(owner)))
        weights /= weights.sum(1, keepdims=True)
        got, want = (
            np.asarray(attempt(weights, list(owner))),
            word_weights(weights, np.array(owner)),
        )
        if got.shape != want.shape:
            return f"expected shape {want.shape}, words by words; got {got.shape}"
        if np.allclose(got, want):
            continue
        member = (np.array(owner)[:, None] == np.arange(max(owner) + 1)).astype(float)
        hint = ""
        if np.allclose(got, member.T @ weights @ member):
            hint = ": average over the query's tokens, so that a row still adds up to 1"
        elif np.allclose(got, (member / member.sum(0)).T @ weights @ (member / member.sum(0))):
            hint = ": sum over the key's tokens"
        return f"for tokens of the words {owner} the numbers are not right{hint}"
    return None


def _offset(attempt: Attempt) -> str | None:
    for queries, answers, want in (
        ([1, 3, 6, 8], [0, 2, 4, 7], 0.75),
        ([5, 5, 5], [1, 2, 3], 1 / 3),
        ([2, 9], [4, 11], 1.0),
    ):
        got = float(attempt(list(queries), list(answers)))
        if np.isclose(got, want):
            continue
        hint = ""
        if np.isclose(got, np.unique(answers, return_counts=True)[1].max() / len(answers)):
            hint = ": that is the best fixed place"
        return f"queries {queries}, answers {answers}: expected {want:.2f}; got {got:.2f}{hint}"
    return None


def _won(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(1)
    for weights in (np.eye(3), np.ones((4, 4)), rng.uniform(size=(6, 6))):
        size = len(weights)
        wins = (np.diagonal(weights)[:, None] > weights).sum()
        got, want = float(attempt(weights.copy())), wins / (size * (size - 1))
        if np.isclose(got, want):
            continue
        hint = ""
        if np.isclose(got, wins / size**2):
            hint = ": a word is not compared with itself"
        elif np.isclose(got, (np.diagonal(weights)[None] > weights).sum() / (size * (size - 1))):
            hint = ": compare within a row, what one second word gives"
        elif not wins:
            hint = ": a tie is no win"
        return f"for {size} pairs expected {want:.3f}; got {got:.3f}{hint}"
    return None


CHECKS: dict[str, Check] = {"words": _words, "offset": _offset, "won": _won}
"""The checks of the chapter, by the name of the exercise."""
