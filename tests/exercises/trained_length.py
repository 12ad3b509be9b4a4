"""The exercises on what lies beyond the trained length: wrong answers with their hints."""

import numpy as np


def slow(theta, width, length):
    return int((2 * np.pi * theta ** (np.arange(0, width, 2) / width) > length).sum())


def base(theta, width, factor, p):
    return theta * factor ** (width / (2 * p))


def parts(theta, width, length, factor, of_slow=1.0, of_fast=0.0):
    speeds = theta ** (-np.arange(0, width, 2) / width)
    slow = length * speeds < 2 * np.pi
    return speeds / factor ** np.where(slow, of_slow, of_fast)


ANSWERS = [
    ("slow-pairs", lambda theta, h, n: h // 2 - slow(theta, h, n), "do complete a turn"),
    ("new-base", lambda theta, h, x, p: base(theta, h, 1 / x, p), "the base has to grow"),
    ("by-parts", lambda *x: parts(*x, 0.0, 1.0), "leaves the others"),
]
