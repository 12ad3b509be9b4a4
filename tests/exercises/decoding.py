"""The exercises on writing one token: wrong answers with their hints."""

import jax.numpy as jnp


def absorbed(q, w_uk, z):
    return jnp.einsum("hir,jr->hij", jnp.einsum("hia,rha->hir", q, w_uk), z)


def grown(w, n, k, h, s, b, t, factor=2):
    return 1 + b * n * t * factor * k * h * s / w


def accepted(p, n):
    return sum(p**m for m in range(n + 1))


ANSWERS = [
    ("slowdown", lambda *sizes: grown(*sizes) - 1, "reads the weights too"),
    ("absorb", lambda q, w_uk, z: absorbed(q, w_uk, z) / 2**0.5, "before scaling"),
    ("tokens", lambda p, n: accepted(p, n) - 1, "adds one token"),
]
