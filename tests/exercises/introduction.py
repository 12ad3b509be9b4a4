"""The exercises of the introduction: right answers, wrong ones with hints."""

import numpy as np


def distance(weights):
    i = np.arange(len(weights))
    return abs(i[:, None] - i[None, :])


ANSWERS = [
    ("share-on", lambda w, j: w[:, j].mean(), "passed"),
    ("share-on", lambda w, j: w[j].mean(), "mean over a row"),
    ("share-on", lambda w, j: w[:, j].sum(), "not their mean"),
    ("mean-distance", lambda w: (w * distance(w)).sum(-1).mean(), "passed"),
    ("mean-distance", lambda w: (w * distance(w)).sum(), "not their mean"),
    (
        "mean-distance",
        lambda w: (w * np.subtract.outer(range(5), range(5))).sum(-1).mean(),
        "cancel",
    ),
    ("previous-share", lambda text: 0.95, "passed"),
    ("previous-share", lambda text: 0.2, "above 0.9"),
    ("previous-share", lambda text: 7.0, "between 0 and 1"),
]
