"""The exercises on how heads come to their roles: right answers, wrong ones with hints."""

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


def unrelated(changed, control):
    a, b = (np.asarray(x, float) for x in (changed, control))
    return float(a.mean() - b.mean()), float(np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a)))


ANSWERS = [
    ("even-score", lambda p: float(np.mean([1 / (i + 1) for i in p])), "passed"),
    ("even-score", lambda p: float(np.mean([1 / i for i in p])), "sees itself too"),
    ("even-score", lambda p: 1 / (float(np.mean(p)) + 1), "average the shares"),
    ("even-score", lambda p: "a", "expected a number"),
    ("even-score", lambda p: 0.5, "expected 0.0885; got 0.5000"),
    ("dimensions", lambda s, share: dimensions(np.sort(s**2)[::-1], share), "passed"),
    ("dimensions", lambda s, share: dimensions(np.sort(s)[::-1], share), "the square"),
    ("dimensions", lambda s, share: dimensions(s**2, share), "the largest come first"),
    ("dimensions", lambda s, share: 9, "expected 3; got 9"),
    ("dimensions", lambda s, share: np.nan, "expected a number"),
    ("two-wide", lambda n: around(n, n**2), "passed"),
    ("two-wide", lambda n: around(n, 50.0), "make the queries longer"),
    ("two-wide", lambda n: (np.ones((n, 2)), np.ones((n, 2))), "prefers key 0"),
    ("two-wide", lambda n: around(n + 1, n**2), "expected queries of shape (2, 2); got (3, 2)"),
    ("two-wide", lambda n: np.ones((n, 2)), "expected a pair"),
    ("two-wide", lambda n: (np.full((n, 2), np.nan), np.ones((n, 2))), "not finite"),
    ("paired", paired, "passed"),
    ("paired", lambda a, b: paired(a, b, ddof=0), "n - 1"),
    ("paired", lambda a, b: paired(a, b, root=False), "of a mean it is smaller"),
    ("paired", unrelated, "take the differences first"),
    ("paired", lambda a, b: 0.3, "expected a pair"),
    ("paired", lambda a, b: (7.0, 0.1), "expected the mean difference"),
    ("paired", lambda a, b: (paired(a, b)[0], 7.0), "expected a standard error of"),
]
