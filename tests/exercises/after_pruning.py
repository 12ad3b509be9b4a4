"""The exercises on what comes after pruning: wrong answers with their hints."""

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


ANSWERS = [
    ("open-gate", lambda a, b, g, z: (sigmoid(a), 0.5), "stretched"),
    ("key-heads", lambda k, g: g, "no query head reads"),
    ("won-back", lambda w, p: (p[0] - p[1]) / (p[0] - w[0]), "what the whole model gained"),
    ("needed-share", lambda a, f: (f - 1) / (1 - a), "of its time"),
]
