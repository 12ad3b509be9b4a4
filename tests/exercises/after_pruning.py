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


def won_back(whole, pruned):
    return 1 - (pruned[1] - whole[1]) / (pruned[0] - whole[0])


def needed_share(attention, faster):
    share = (1 - 1 / faster) / (1 - attention)
    return share if share <= 1 else None


ANSWERS = [
    ("open-gate", open_and_full, "passed"),
    ("open-gate", lambda a, b, g, z: (sigmoid(a), 0.5), "stretched"),
    ("key-heads", key_heads, "passed"),
    ("key-heads", lambda k, g: g, "no query head reads"),
    ("won-back", won_back, "passed"),
    ("won-back", lambda w, p: (p[0] - p[1]) / (p[0] - w[0]), "what the whole model gained"),
    ("needed-share", needed_share, "passed"),
    ("needed-share", lambda a, f: (f - 1) / (1 - a), "of its time"),
]
