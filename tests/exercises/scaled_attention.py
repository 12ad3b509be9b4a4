"""The exercises on scaled attention: right answers, wrong ones with hints."""

import math

import jax
import jax.numpy as jnp
import numpy as np

WARNINGS = ("ignore:divide by zero", "ignore:invalid value")
"""What NumPy says of some wrong answers."""


def softmax(scores):
    highest = scores.max(axis=-1, keepdims=True)
    e = jnp.exp(scores - jnp.where(jnp.isneginf(highest), 0.0, highest))
    total = e.sum(axis=-1, keepdims=True)
    return e / jnp.where(total == 0, 1.0, total)


def masked(allowed):
    """A try at the second exercise from a rule on (position, i, j, left)."""

    def attempt(queries, keys, offset, left):
        i, j = jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]
        return allowed(i + offset, i, j, left)

    return attempt


def bisect(sign):
    def attempt(scores, entropy):
        low, high = -10.0, 10.0
        for _ in range(50):
            middle = (low + high) / 2
            a = np.asarray(jax.nn.softmax(scores * math.exp(sign * middle)), np.float64)
            mean = -(a * np.log(np.maximum(a, 1e-300))).sum(-1).mean()
            sharper = sign * (mean - entropy) > 0
            low, high = (middle, high) if sharper else (low, middle)
        return math.exp(middle)

    return attempt


def log_odds(weight):
    return math.log(weight / (1 - weight))


ANSWERS = [
    ("softmax", softmax, "passed"),
    ("visible", masked(lambda p, i, j, w: (j <= p) & (j >= p - w)), "passed"),
    ("cosine", lambda d, s, w: math.log(w * (s - 1) / (1 - w)) / math.sqrt(d), "passed"),
    ("temperature", bisect(1), "passed"),
    ("softmax", lambda s: jnp.exp(s), "divide by the row's sum"),
    ("softmax", lambda s: jnp.exp(s) / jnp.exp(s).sum(), "a sum of its own"),
    ("softmax", lambda s: jnp.exp(s) / jnp.exp(s).sum(-1, keepdims=True), "exp(1000) is inf"),
    (
        "softmax",
        lambda s: jnp.exp(jnp.minimum(s, 80)) / jnp.exp(jnp.minimum(s, 80)).sum(-1, keepdims=True),
        "subtract the row's maximum",
    ),
    (
        "softmax",
        lambda s: jnp.exp(s - 1000) / jnp.exp(s - 1000).sum(-1, keepdims=True),
        "gave",
    ),
    ("softmax", lambda s: jax.nn.softmax(s), "an empty row"),
    ("softmax", lambda s: jax.nn.softmax(s).sum(-1), "the shape of the scores"),
    ("softmax", lambda s: undefined_name, "NameError"),
    ("visible", masked(lambda p, i, j, w: j <= i), "the offset is left out"),
    ("visible", masked(lambda p, i, j, w: (j <= i) & (j >= i - w)), "the offset is left out"),
    ("visible", masked(lambda p, i, j, w: (j > p) | (j < p - w)), "True has to mean"),
    ("visible", masked(lambda p, i, j, w: (j < p) & (j >= p - w)), "its own position"),
    ("visible", masked(lambda p, i, j, w: (j <= p) & (j > p - w)), "one key too short"),
    ("visible", masked(lambda p, i, j, w: j <= p), "the window is missing"),
    ("visible", masked(lambda p, i, j, w: j >= p - w), "later keys"),
    ("visible", masked(lambda p, i, j, w: j == p), "wrong at (i, j) = "),
    ("visible", masked(lambda p, i, j, w: (j <= p).astype(jnp.float32)), "a boolean array"),
    ("visible", masked(lambda p, i, j, w: (j <= p)[0]), "expected shape (T, S)"),
    ("cosine", lambda d, s, w: math.log(w * (s - 1) / (1 - w)), "that is the score itself"),
    ("cosine", lambda d, s, w: math.log(w * (s - 1) / (1 - w)) / d, "not all of it"),
    ("cosine", lambda d, s, w: math.log(w * s / (1 - w)) / math.sqrt(d), "S - 1 other keys"),
    ("cosine", lambda d, s, w: log_odds(w) / math.sqrt(d), "the other keys count too"),
    ("cosine", lambda d, s, w: 0.5, "expected 0."),
    ("temperature", bisect(-1), "the factor multiplies the scores"),
    ("temperature", lambda s, e: 1.0, "the mean entropy at factor 1.000 is"),
    ("temperature", lambda s, e: -1.0, "a positive factor"),
]
