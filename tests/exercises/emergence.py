"""The exercises on how heads come to their roles: wrong answers with their hints."""

import numpy as np


def around(n, factor):
    turn = 2 * np.pi * np.arange(n) / n
    keys = np.stack([np.cos(turn), np.sin(turn)], -1)
    return factor * keys, keys


def dimensions(energy, share):
    held = np.cumsum(energy) / np.sum(energy)
    return int((held < share - 1e-9).sum()) + 1


def paired(changed, control, *, ddof=1, root=True):
    apart = np.asarray(changed, float) - np.asarray(control, float)
    return float(apart.mean()), float(apart.std(ddof=ddof) / (len(apart) ** 0.5 if root else 1))


ANSWERS = [
    ("even-score", lambda p: float(np.mean([1 / i for i in p])), "sees itself too"),
    ("dimensions", lambda s, share: dimensions(np.sort(s)[::-1], share), "the square"),
    ("two-wide", lambda n: around(n, 50.0), "make the queries longer"),
    ("paired", lambda a, b: paired(a, b, ddof=0), "n - 1"),
]
