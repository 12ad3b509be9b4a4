"""The exercises on sharing keys and values: right answers, wrong ones with hints."""

import jax.numpy as jnp


def pooled(w_k, k):
    d, n, h = w_k.shape
    return w_k.reshape(d, k, n // k, h)


ANSWERS = [
    ("key-head", lambda h, n, k: h // (n // k), "passed"),
    ("key-head", lambda h, n, k: h % k, "in turn"),
    ("key-head", lambda h, n, k: h // k, "a group has N / K = 3 heads"),
    ("key-head", lambda h, n, k: h * k / n, "round down"),
    ("key-head", lambda h, n, k: 0, "expected [0, 0, 1, 1]; got [0, 0, 0, 0]"),
    ("pool", lambda w, k: pooled(w, k).mean(axis=2), "passed"),
    ("pool", lambda w, k: w, "expected the shape (5, 2, 7); got (5, 6, 7)"),
    ("pool", lambda w, k: w.reshape(5, -1, k, 7).mean(axis=1), "each 2-th head"),
    ("pool", lambda w, k: pooled(w, k).sum(axis=2), "not its mean"),
    ("pool", lambda w, k: pooled(w, k)[:, :, 0], "picks the first"),
    ("pool", lambda w, k: pooled(w, k).max(axis=2), "not the means"),
    ("unshare", lambda w, n: jnp.repeat(w, n // w.shape[1], axis=1), "passed"),
    ("unshare", lambda w, n: jnp.tile(w, (1, n // w.shape[1], 1)), "in turn"),
    ("unshare", lambda w, n: w, "expected the shape (5, 6, 7); got (5, 2, 7)"),
    ("unshare", lambda w, n: 2 * jnp.repeat(w, n // w.shape[1], axis=1), "not those that"),
]
