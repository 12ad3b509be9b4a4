"""The exercises on gradients: wrong answers with their hints."""

import jax.numpy as jnp


def sink(a, d_a):
    return a * (d_a - (a * d_a).sum(axis=-1, keepdims=True))


def block(q, k, v, d_out, lse, inner, scale=0.5):
    a = jnp.exp(scale * q @ k.T - lse[:, None])
    d_s = a * (d_out @ v.T - inner[:, None])
    return scale * d_s @ k, scale * d_s.T @ q, a.T @ d_out


ANSWERS = [
    ("values", lambda: 3, "LaTeX as a string"),
    ("sink", lambda a, d_a: a * (1 - a) * d_a, "diagonal of the Jacobian"),
    ("block", lambda *given: given[0], "three arrays"),
]
