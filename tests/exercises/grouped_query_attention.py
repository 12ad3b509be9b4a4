"""The exercises on sharing keys and values: right answers, wrong ones with hints."""

import jax.numpy as jnp


def pooled(w_k, k):
    d, n, h = w_k.shape
    return w_k.reshape(d, k, n // k, h)


def absorbed(q, w_uk, z):
    return jnp.einsum("hir,jr->hij", jnp.einsum("hia,rha->hir", q, w_uk), z)


def expanded(q, w_uk, z):
    return jnp.einsum("hia,hja->hij", q, jnp.einsum("jr,rha->hja", z, w_uk))


def grown(w, n, k, h, s, b, t, factor=2):
    return 1 + b * n * t * factor * k * h * s / w


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
    ("slowdown", grown, "passed"),
    ("slowdown", lambda *sizes: grown(*sizes) - 1, "reads the weights too"),
    ("slowdown", lambda *sizes: grown(*sizes, factor=1), "a key and a value"),
    ("slowdown", lambda w, n, k, h, s, b, t: grown(w, n, k, h, s, 1, t), "every sequence"),
    ("slowdown", lambda w, n, k, h, s, b, t: grown(w, 1, k, h, s, b, t), "every layer"),
    ("slowdown", lambda *sizes: 7.5, "got 7.5000"),
    ("slowdown", lambda *sizes: "more", "expected a number; got str"),
    ("absorb", absorbed, "passed"),
    ("absorb", lambda q, w_uk, z: q, "expected the shape (N, T, S) = (3, 5, 7)"),
    ("absorb", lambda q, w_uk, z: absorbed(q, w_uk, z) / 2**0.5, "before scaling"),
    ("absorb", lambda q, w_uk, z: -absorbed(q, w_uk, z), "differ from the products"),
    ("absorb", expanded, "keys of all heads were made"),
]
