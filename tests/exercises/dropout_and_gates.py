"""The exercises on dropout and gates: wrong answers with their hints."""

import numpy as np


def reserve(losses, over=True):
    costs = np.asarray(losses) - losses[0]
    single = costs[2 ** np.arange(int(np.log2(len(costs))))].sum()
    return costs[-1] / single if over else single / costs[-1]


def share(rate, penalty=None):
    u, v = 6.0, 0.0
    penalty = rate / (1 - rate) if penalty is None else penalty
    for _ in range(5000):
        gap = u + v - 6
        u, v = u - 0.1 * (gap + penalty * u), v - 0.1 * (gap + penalty * v)
    return u, v


ANSWERS = [
    ("gates", lambda w, d: w * d, "one number a head"),
    ("reserve", lambda x: x[-1] / sum(x[2**n] for n in range(int(np.log2(len(x))))), "is left"),
    ("forecast", lambda s: -s(1.0), "degree 2"),
    ("share", lambda rate: 6.0, "two numbers"),
]
