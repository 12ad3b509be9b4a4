"""The exercises on variants: right answers, wrong ones with hints."""

import numpy as np

ONE_VALUE = r"V^{jc} = X^{jb} W_V^{bc} \\ O^{hic} = A^{hij} V^{jc}"
NEEDLESS = r" \\ U^{hic} = O^{hic} \\ Y^{id} = U^{hic} W_O^{hcd}"


def weights(scores, sink):
    most = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    raised = np.exp(scores - most)
    return raised / (raised.sum(axis=-1, keepdims=True) + np.exp(sink - most))


def naive(scores, sink):
    with np.errstate(all="ignore"):
        return np.exp(scores) / (np.exp(scores).sum(axis=-1, keepdims=True) + np.exp(sink))


def softmax(scores, sink):
    return weights(scores, -np.inf)


ANSWERS = [
    ("heads", lambda n, e, a: (n + e) // (2 * a), "passed"),
    ("heads", lambda n, e, a: (n + e) // a, "a key and a value"),
    ("heads", lambda n, e, a: n // (2 * a), "rotated part"),
    ("heads", lambda n, e, a: (n + e) // (2 * a) + 1, "round down"),
    ("heads", lambda n, e, a: 77, "got 77"),
    ("heads", lambda n, e, a: (n + e) / (2 * a), "expected a whole number; got float"),
    ("line", lambda: ONE_VALUE, "passed"),
    ("line", lambda: 3, "expected LaTeX as text; got int"),
    ("line", lambda: r"V^{jc} = X^{jb} W_V^{bc}", "make no layer with the others"),
    ("line", lambda: ONE_VALUE + r" \\ P^{hic} = O^{hic}", "passed"),
    ("line", lambda: ONE_VALUE + NEEDLESS, "expected a layer of Q"),
    ("line", lambda: r"V^{hjc} = X^{jb} W_V^{hbc}", "does not run"),
    ("line", lambda: ONE_VALUE.replace("A^{hij}", "2 A^{hij}"), "the output is not that"),
    ("sink", weights, "passed"),
    ("sink", naive, "not finite"),
    ("sink", softmax, "sum to one"),
    ("sink", lambda scores, sink: 2 * weights(scores, sink), "differ from exp"),
    ("sink", lambda scores, sink: scores[0], "expected the shape"),
]
