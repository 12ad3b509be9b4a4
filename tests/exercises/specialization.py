"""The exercises on what heads learn: right answers, wrong ones with hints."""

import numpy as np


def null_value(length):
    return float(np.mean([1 / (i + 1) for i in range(1, length)]))


def targets(tokens, query):
    return [j for j in range(1, query + 1) if tokens[j - 1] == tokens[query]]


def overlap(one, other):
    return float((one & other).sum()), float(one.sum() * other.sum() / one.size)


ANSWERS = [
    ("null-value", null_value, "passed"),
    ("null-value", lambda n: np.mean([1 / (i + 1) for i in range(n)]), "does not count"),
    ("induction-targets", targets, "passed"),
    ("induction-targets", lambda t, q: [j for j in range(q) if t[j] == t[q]], "what follows"),
    ("excess", lambda m, null: (m - null) / (1 - null), "passed"),
    ("excess", lambda m, null: m - null, "difference"),
    ("overlap", overlap, "passed"),
    ("overlap", lambda a, b: (float((a | b).sum()), 0.0), "in one list or the other"),
]
