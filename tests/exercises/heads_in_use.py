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
    ("controls", lambda t, n, g: [(3, 0), (5, 1), (5, 2)], "as many heads of each layer"),
    ("copy", copy, "passed"),
    ("copy", lambda t: copy(t, 0), "follows the first occurrence"),
    ("copy", lambda t: t[-1], "repeats the last token"),
    ("compose", score, "passed"),
    ("compose", lambda o, g: score(o, g.T), "through the queries"),
    ("compose", lambda o, g: score(o, g) ** 2, "take the root"),
    ("route", lambda w, a, k: (w - k) / (w - a), "passed"),
    ("route", lambda w, a, k: (k - a) / (w - a), "other routes"),
    ("route", lambda w, a, k: k / w, "what is left"),
]
