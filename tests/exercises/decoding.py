"""The exercises on writing one token: right answers, wrong ones with hints."""

import jax.numpy as jnp


def absorbed(q, w_uk, z):
    return jnp.einsum("hir,jr->hij", jnp.einsum("hia,rha->hir", q, w_uk), z)


def expanded(q, w_uk, z):
    return jnp.einsum("hia,hja->hij", q, jnp.einsum("jr,rha->hja", z, w_uk))


def grown(w, n, k, h, s, b, t, factor=2):
    return 1 + b * n * t * factor * k * h * s / w


def accepted(p, n):
    return sum(p**m for m in range(n + 1))


ANSWERS = [
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
    ("tokens", accepted, "passed"),
    ("tokens", lambda p, n: accepted(p, n) - 1, "adds one token"),
    ("tokens", lambda p, n: 1 + n * p, "all guesses before it"),
    ("tokens", lambda p, n: n * p, "adds one token"),
    ("tokens", lambda p, n: 7.5, "got 7.5000"),
    ("tokens", lambda p, n: "two", "expected a number; got str"),
]
