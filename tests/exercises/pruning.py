"""The exercises on removing heads: right answers, wrong ones with hints."""

import numpy as np


def gates_of(outputs, slopes):
    return (outputs * slopes).sum(axis=(2, 3))


def lowest(rises, share, sign=1):
    order = np.argsort(sign * rises, axis=None)[: round(share * rises.size)]
    return list(zip(*np.unravel_index(order, rises.shape), strict=True))


def as_printed(rises, share):
    ranked = sorted(enumerate(rises.ravel()), key=lambda x: x[1], reverse=True)
    return ranked[len(ranked) - round(share * len(ranked)) :]


def single(loss, n, h):
    gates = np.ones(n)
    gates[h] = 0
    return loss(gates) - loss(np.ones(n))


def excess(loss, n, heads):
    return single(loss, n, heads) - sum(single(loss, n, h) for h in heads)


ANSWERS = [
    ("sensitivity", lambda o, s: abs(gates_of(o, s)).mean(0), "passed"),
    ("sensitivity", lambda o, s: o * s, "one number for each head"),
    ("sensitivity", lambda o, s: abs(gates_of(o, s).mean(0)), "opposite signs of texts cancel"),
    ("sensitivity", lambda o, s: gates_of(o, s).mean(0), "has a sign"),
    ("sensitivity", lambda o, s: -gates_of(o, s).mean(0), "signed estimate"),
    ("sensitivity", lambda o, s: abs(o * s).sum((2, 3)).mean(0), "sum before abs"),
    ("sensitivity", lambda o, s: abs(gates_of(o, s)).sum(0), "not the mean"),
    ("sensitivity", lambda o, s: np.zeros(3), "the numbers are not"),
    ("remove", lowest, "passed"),
    ("remove", lambda r, s: np.argsort(r, axis=None)[: round(s * r.size)], "is a pair"),
    ("remove", lambda r, s: lowest(r, 2 * s), "expected 3 heads; got 6"),
    ("remove", lambda r, s: lowest(r, s, -1), "missed most"),
    ("remove", as_printed, "pairs of number and importance"),
    ("remove", lambda r, s: [(i // 4, i % 4) for i in range(round(s * 12))], "the first of"),
    ("remove", lambda r, s: [(2, i) for i in range(round(s * 12))], "expected [(0, 1)"),
    ("excess", excess, "passed"),
    ("excess", single, "the joint rise"),
    ("excess", lambda loss, n, hs: sum(single(loss, n, h) for h in hs), "the sum of what"),
    ("excess", lambda loss, n, hs: -excess(loss, n, hs), "the sign"),
    ("excess", lambda loss, n, hs: excess(loss, n, hs) - 2 * (len(hs) - 1), "relative to"),
    ("excess", lambda loss, n, hs: 7.0, "expected 3.00; got 7.00"),
]
