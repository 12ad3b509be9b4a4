"""The exercises on what comes after pruning: right answers, wrong ones with hints."""

import math


def key_heads(keep, groups):
    return int(keep.reshape(groups, -1).any(axis=1).sum())


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def open_and_full(a, b, g, z):
    def above(threshold):
        return sigmoid(a - b * math.log(threshold / (1 - threshold)))

    return above(-g / (z - g)), above((1 - g) / (z - g))


OPEN_GATE = [
    (open_and_full, "passed"),
    (lambda a, b, g, z: (sigmoid(a), 0.5), "stretched"),
    (lambda a, b, g, z: (sigmoid(a + b * math.log(-g / z)), 0.5), "other sign"),
    (lambda a, b, g, z: (sigmoid(a - math.log(-g / z)), 0.5), "factor beta"),
    (lambda *given: (1 - open_and_full(*given)[0], 0.5), "closed"),
    (lambda *given: (open_and_full(*given)[0], 1 - open_and_full(*given)[1]), "below 1"),
    (lambda *given: (0.3, 0.5), "P(g > 0) is"),
    (lambda *given: (open_and_full(*given)[0], 0.123), "P(g = 1) is"),
    (lambda *given: 0.5, "two probabilities"),
]


def won_back(whole, pruned):
    return 1 - (pruned[1] - whole[1]) / (pruned[0] - whole[0])


def needed_share(attention, faster):
    share = (1 - 1 / faster) / (1 - attention)
    return share if share <= 1 else None


ANSWERS = [
    *(("open-gate", *case) for case in OPEN_GATE),
    ("key-heads", key_heads, "passed"),
    ("key-heads", lambda k, g: g, "no query head reads"),
    ("key-heads", lambda k, g: int(k.sum()), "query heads;"),
    ("key-heads", lambda k, g: int(k.reshape(-1, g).any(axis=0).sum()), "in turn"),
    ("key-heads", lambda k, g: int(k.reshape(g, -1).all(axis=1).sum()), "as long as one"),
    ("key-heads", lambda k, g: -1, "expected 2; got -1"),
    ("won-back", won_back, "passed"),
    ("won-back", lambda w, p: (p[0] - p[1]) / (p[0] - w[0]), "what the whole model gained"),
    ("won-back", lambda w, p: 1 - won_back(w, p), "still missing"),
    ("won-back", lambda w, p: p[0] - w[0] - p[1] + w[1], "divide by"),
    ("won-back", lambda w, p: p[1] - w[1], "in nats"),
    ("won-back", lambda w, p: 7.0, "got 7.000"),
    ("needed-share", needed_share, "passed"),
    ("needed-share", lambda a, f: (1 - 1 / f) / (1 - a), "expected None"),
    ("needed-share", lambda a, f: None, "is enough; got None"),
    ("needed-share", lambda a, f: (f - 1) / (1 - a), "of its time"),
    ("needed-share", lambda a, f: (1 - 1 / f) / a, "is 1 - attention"),
    ("needed-share", lambda a, f: 7.0, "got 7.000"),
]
