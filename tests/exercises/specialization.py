"""The exercises on what heads learn: right answers, wrong ones with hints."""

import numpy as np


def null_value(length):
    return float(np.mean([1 / (i + 1) for i in range(1, length)]))


def targets(tokens, query):
    return [j for j in range(1, query + 1) if tokens[j - 1] == tokens[query]]


def drawn(top, num_heads, generator):
    found = []
    for layer in sorted({layer for layer, _ in top}):
        own = [head for at, head in top if at == layer]
        free = np.setdiff1d(np.arange(num_heads), own)
        found += [(layer, h) for h in generator.choice(free, len(own), replace=False)]
    return found


def around(n, factor):
    turn = 2 * np.pi * np.arange(n) / n
    keys = np.stack([np.cos(turn), np.sin(turn)], -1)
    return factor * keys, keys


ANSWERS = [
    ("two-wide", lambda n: around(n, n**2), "passed"),
    ("two-wide", lambda n: around(n, 50.0), "make the queries longer"),
    ("two-wide", lambda n: (np.ones((n, 2)), np.ones((n, 2))), "prefers key 0"),
    ("two-wide", lambda n: around(n + 1, n**2), "expected queries of shape (2, 2); got (3, 2)"),
    ("two-wide", lambda n: np.ones((n, 2)), "expected a pair"),
    ("two-wide", lambda n: (np.full((n, 2), np.nan), np.ones((n, 2))), "not finite"),
    ("null-value", null_value, "passed"),
    ("null-value", lambda n: np.mean([1 / (i + 1) for i in range(n)]), "does not count"),
    ("null-value", lambda n: 1 / n if n > 2 else 0.5, "sees i + 1 keys"),
    ("null-value", lambda n: np.mean([1 / i for i in range(1, n)]), "itself too"),
    ("null-value", lambda n: 7.0, "expected 0.5000; got 7.0000"),
    ("null-value", lambda n: "a", "expected a number"),
    ("induction-targets", targets, "passed"),
    ("induction-targets", lambda t, q: [j for j in range(q) if t[j] == t[q]], "what follows"),
    (
        "induction-targets",
        lambda t, q: [j - 1 for j in range(1, q) if t[j] == t[q]] if q == 4 else targets(t, q),
        "stand before",
    ),
    ("induction-targets", lambda t, q: [*targets(t, q), q + 1], "not visible"),
    ("induction-targets", lambda t, q: [0, 2], "expected [1]; got [0, 2]"),
    ("excess", lambda m, null: (m - null) / (1 - null), "passed"),
    ("excess", lambda m, null: m - null, "difference"),
    ("excess", lambda m, null: m / null, "ratio"),
    ("excess", lambda m, null: 0.0, "shape (3, 5)"),
    ("excess", lambda m, null: 0 * m, "over a null of 0.25"),
    ("controls", drawn, "passed"),
    ("controls", lambda t, n, g: t, "must not be"),
    ("controls", lambda t, n, g: [(3, 0), (5, 1), (5, 2)], "as many heads of each layer"),
    ("controls", lambda t, n, g: [(3, 0), (3, 0), (5, 1)], "twice"),
    ("controls", lambda t, n, g: [(3, 0), (3, 6), (5, 1)], "0 to 5"),
    ("controls", lambda t, n, g: [(3, 0), (3, 2), (5, 1)], "draw with the generator"),
]
