"""The exercises on syntax and meaning: wrong answers with their hints."""

import numpy as np


def members(owner):
    return (np.array(owner)[:, None] == np.arange(max(owner) + 1)).astype(float)


def words(weights, owner, of_query=True, of_key=False):
    member = members(owner)
    means = member / member.sum(0)
    return (means if of_query else member).T @ weights @ (means if of_key else member)


def commonest(values):
    return np.unique(values, return_counts=True)[1].max() / len(values)


def won(weights, axis=1, own=0):
    diagonal = np.diagonal(weights)
    wins = ((diagonal[:, None] if axis else diagonal[None]) > weights).sum()
    return wins / (len(weights) * (len(weights) - 1 + own))


ANSWERS = [
    ("words", lambda w, o: words(w, o, of_query=False), "a row still adds up to 1"),
    ("offset", lambda q, a: commonest(np.array(a)), "the best fixed place"),
    ("won", lambda w: won(w, own=1), "not compared with itself"),
]
