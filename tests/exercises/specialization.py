"""The exercises on what heads learn: wrong answers with their hints."""

import numpy as np


def targets(tokens, query):
    return [j for j in range(1, query + 1) if tokens[j - 1] == tokens[query]]


def overlap(one, other):
    return float((one & other).sum()), float(one.sum() * other.sum() / one.size)


ANSWERS = [
    ("null-value", lambda n: np.mean([1 / (i + 1) for i in range(n)]), "does not count"),
    ("induction-targets", lambda t, q: [j for j in range(q) if t[j] == t[q]], "what follows"),
    ("excess", lambda m, null: m - null, "difference"),
    ("overlap", lambda a, b: (float((a | b).sum()), 0.0), "in one list or the other"),
]
