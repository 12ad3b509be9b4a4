"""The exercises on removing heads: wrong answers with their hints."""

import numpy as np


def gates_of(outputs, slopes):
    return (outputs * slopes).sum(axis=(2, 3))


def single(loss, n, h):
    gates = np.ones(n)
    gates[h] = 0
    return loss(gates) - loss(np.ones(n))


def excess(loss, n, heads):
    return single(loss, n, heads) - sum(single(loss, n, h) for h in heads)


ANSWERS = [
    ("sensitivity", lambda o, s: abs(gates_of(o, s).mean(0)), "opposite signs of texts cancel"),
    ("remove", lambda r, s: np.argsort(r, axis=None)[: round(s * r.size)], "is a pair"),
    ("excess", single, "the joint rise"),
]
