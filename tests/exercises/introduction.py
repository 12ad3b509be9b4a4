"""The exercises of the introduction: wrong answers with their hints."""

import numpy as np


def distance(weights):
    i = np.arange(len(weights))
    return abs(i[:, None] - i[None, :])


ANSWERS = [
    ("share-on", lambda w, j: w[j].mean(), "mean over a row"),
    ("mean-distance", lambda w: (w * distance(w)).sum(), "not their mean"),
    ("previous-share", lambda text: 0.2, "above 0.9"),
]
