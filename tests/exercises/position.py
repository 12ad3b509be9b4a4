"""The exercises on positions: wrong answers with their hints."""

import math

import numpy as np


def turn(pair, position, speed, sign=1):
    c, s = math.cos(position * speed), sign * math.sin(position * speed)
    return c * pair[0] - s * pair[1], s * pair[0] + c * pair[1]


def score(q, k, distance, theta):
    angle = distance * theta ** (-np.arange(0, len(q), 2) / len(q))
    along = q[0::2] * k[0::2] + q[1::2] * k[1::2]
    across = q[0::2] * k[1::2] - q[1::2] * k[0::2]
    return (along * np.cos(angle) + across * np.sin(angle)).sum()


ANSWERS = [
    ("turn", lambda pair, i, speed: turn(pair, i, speed, -1), "backwards"),
    ("score", lambda q, k, n, theta: score(q, k, -n, theta), "the other sign"),
    ("blindness", lambda f, x, order: abs(f(x[order]) - f(x)).max(), "is blind"),
]
