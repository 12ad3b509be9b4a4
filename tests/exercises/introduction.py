"""The exercises of the introduction: right answers, wrong ones with hints."""

import numpy as np


def distance(weights):
    i = np.arange(len(weights))
    return abs(i[:, None] - i[None, :])


ANSWERS = [
    ("share-on", lambda w, j: w[:, j].mean(), "passed"),
    ("share-on", lambda w, j: w[j].mean(), "mean over a row"),
    ("mean-distance", lambda w: (w * distance(w)).sum(-1).mean(), "passed"),
    ("mean-distance", lambda w: (w * distance(w)).sum(), "not their mean"),
    ("previous-share", lambda text: 0.95, "passed"),
    ("previous-share", lambda text: 0.2, "above 0.9"),
]
