"""The exercises on attention sinks: right answers, wrong ones with hints."""

import numpy as np


def joined(scores, logit):
    every = np.concatenate((scores, np.full((len(scores), 1), logit)), axis=1)
    weights = np.exp(every - every.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def plain(scores, logit):
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def overflowing(scores, logit):
    with np.errstate(all="ignore"):
        weights = np.exp(scores)
        return weights / (np.exp(logit) + weights.sum(1, keepdims=True))


def seen(length, window, kept, least=0):
    place = np.arange(length)
    back = place[:, None] - place
    return (back >= least) & ((back < window) | (place < kept))


def kept_keys(length, heads, whole, window, kept):
    return whole * length + (heads - whole) * min(length, window + kept)


ANSWERS = [
    ("denominator", lambda s, c: joined(s, c)[:, :-1], "passed"),
    ("denominator", joined, "a column for the sink"),
    ("denominator", plain, "those sum to 1"),
    ("denominator", overflowing, "overflow"),
    ("denominator", lambda s, c: joined(s, c + 1)[:, :-1], "for scores"),
    ("denominator", lambda s, c: 1.0, "one weight for each score"),
    ("visible", seen, "passed"),
    ("visible", lambda t, w, n: seen(t, w, n, -1), "comes after it"),
    ("visible", lambda t, w, n: seen(t, w + 1, n), "one key too many"),
    ("visible", lambda t, w, n: seen(t, w, 0), "which are kept"),
    ("visible", lambda t, w, n: seen(t, w - 1, n), "query 2 and key 1"),
    ("visible", lambda t, w, n: seen(t, w, n) * 1.0, "expected booleans"),
    ("cached", kept_keys, "passed"),
    ("cached", lambda t, k, x, w, n: x * t + (k - x) * w, "first positions are missing"),
    ("cached", lambda t, k, x, w, n: x * t + (k - x) * (w + n), "than there are tokens"),
    ("cached", lambda t, k, x, w, n: k * t, "expected 266; got 800"),
]
