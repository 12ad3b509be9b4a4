"""The exercises on heads in use: right answers, wrong ones with hints."""

import numpy as np


def drawn(top, num_heads, generator):
    found = []
    for layer in sorted({layer for layer, _ in top}):
        own = [head for at, head in top if at == layer]
        free = np.setdiff1d(np.arange(num_heads), own)
        found += [(layer, h) for h in generator.choice(free, len(own), replace=False)]
    return found


def copy(tokens, pick=-1):
    places = [j for j in range(1, len(tokens)) if tokens[j - 1] == tokens[-1]]
    return tokens[places[pick]] if places else None


def score(omega, gamma):
    return np.linalg.norm(omega @ gamma.T) / np.linalg.norm(omega) / np.linalg.norm(gamma)


ANSWERS = [
    ("controls", drawn, "passed"),
    ("controls", lambda t, n, g: t, "must not be"),
    ("copy", copy, "passed"),
    ("copy", lambda t: copy(t, 0), "follows the first occurrence"),
    ("compose", score, "passed"),
    ("compose", lambda o, g: score(o, g.T), "through the queries"),
    ("route", lambda w, a, k: (w - k) / (w - a), "passed"),
    ("route", lambda w, a, k: (k - a) / (w - a), "other routes"),
]
