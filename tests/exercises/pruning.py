"""The exercises on removing heads: right answers, wrong ones with hints."""

import numpy as np


def gates_of(outputs, slopes):
    return (outputs * slopes).sum(axis=(2, 3))


def lowest(rises, share, sign=1):
    order = np.argsort(sign * rises, axis=None)[: round(share * rises.size)]
    return list(zip(*np.unravel_index(order, rises.shape), strict=True))


def single(loss, n, h):
    gates = np.ones(n)
    gates[h] = 0
    return loss(gates) - loss(np.ones(n))


def excess(loss, n, heads):
    return single(loss, n, heads) - sum(single(loss, n, h) for h in heads)


ANSWERS = [
    ("sensitivity", lambda o, s: abs(gates_of(o, s)).mean(0), "passed"),
    ("sensitivity", lambda o, s: abs(gates_of(o, s).mean(0)), "opposite signs of texts cancel"),
    ("remove", lowest, "passed"),
    ("remove", lambda r, s: np.argsort(r, axis=None)[: round(s * r.size)], "is a pair"),
    ("excess", excess, "passed"),
    ("excess", single, "the joint rise"),
]
