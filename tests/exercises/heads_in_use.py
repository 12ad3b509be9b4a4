"""The exercises on heads in use: wrong answers with their hints."""

import numpy as np


def copy(tokens, pick=-1):
    places = [j for j in range(1, len(tokens)) if tokens[j - 1] == tokens[-1]]
    return tokens[places[pick]] if places else None


def score(omega, gamma):
    return np.linalg.norm(omega @ gamma.T) / np.linalg.norm(omega) / np.linalg.norm(gamma)


ANSWERS = [
    ("controls", lambda t, n, g: t, "must not be"),
    ("copy", lambda t: copy(t, 0), "follows the first occurrence"),
    ("compose", lambda o, g: score(o, g.T), "through the queries"),
    ("route", lambda w, a, k: (k - a) / (w - a), "other routes"),
]
