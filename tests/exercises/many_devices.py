"""The exercises on many devices: wrong answers with their hints."""

import numpy as np


def contiguous(length, devices):
    return np.arange(length).reshape(devices, -1).tolist()


def join(outputs, lses):
    top = lses.max(axis=0)
    lse = top + np.log(np.exp(lses - top).sum(axis=0))
    return (np.exp(lses - lse)[..., None] * outputs).sum(axis=0), lse


def careless(outputs, lses):
    with np.errstate(all="ignore"):
        lse = np.log(np.exp(lses).sum(axis=0))
        return (np.exp(lses - lse)[..., None] * outputs).sum(axis=0), lse


def sent(devices, length, heads, key_heads, width, size):
    part = devices - 1
    return (
        2 * part * length * heads * width * size // devices,
        2 * part * length * key_heads * width * size // devices,
    )


ANSWERS = [
    ("place", contiguous, "one device has 36 pairs to compute, another 100"),
    ("join", careless, "near 200"),
    ("sent", lambda *x: (sent(*x)[0] // 2, sent(*x)[1]), "so each part goes twice"),
]
