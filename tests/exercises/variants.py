"""The exercises on variants: right answers, wrong ones with hints."""

import numpy as np

ONE_VALUE = r"V^{jc} = X^{jb} W_V^{bc} \\ O^{hic} = A^{hij} V^{jc}"


def weights(scores, sink):
    most = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    raised = np.exp(scores - most)
    return raised / (raised.sum(axis=-1, keepdims=True) + np.exp(sink - most))


def naive(scores, sink):
    with np.errstate(all="ignore"):
        return np.exp(scores) / (np.exp(scores).sum(axis=-1, keepdims=True) + np.exp(sink))


ANSWERS = [
    ("heads", lambda n, e, a: (n + e) // (2 * a), "passed"),
    ("heads", lambda n, e, a: (n + e) // a, "a key and a value"),
    ("line", lambda: ONE_VALUE, "passed"),
    ("line", lambda: r"V^{jc} = X^{jb} W_V^{bc}", "make no layer with the others"),
    ("sink", weights, "passed"),
    ("sink", naive, "not finite"),
]
