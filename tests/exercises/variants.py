"""The exercises on variants: wrong answers with their hints."""

import numpy as np


def naive(scores, sink):
    with np.errstate(all="ignore"):
        return np.exp(scores) / (np.exp(scores).sum(axis=-1, keepdims=True) + np.exp(sink))


ANSWERS = [
    ("heads", lambda n, e, a: (n + e) // a, "a key and a value"),
    ("line", lambda: r"V^{jc} = X^{jb} W_V^{bc}", "make no layer with the others"),
    ("sink", naive, "not finite"),
]
