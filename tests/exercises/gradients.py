"""The exercises on gradients: right answers, wrong ones with hints."""

import jax.numpy as jnp

VALUES = r"\frac{\partial L}{\partial V^{kjc}} = A^{kgij} \frac{\partial L}{\partial O^{kgic}}"


def sink(a, d_a):
    return a * (d_a - (a * d_a).sum(axis=-1, keepdims=True))


def block(q, k, v, d_out, lse, inner, scale=0.5):
    a = jnp.exp(scale * q @ k.T - lse[:, None])
    d_s = a * (d_out @ v.T - inner[:, None])
    return scale * d_s @ k, scale * d_s.T @ q, a.T @ d_out


ANSWERS = [
    ("values", lambda: VALUES, "passed"),
    ("values", lambda: 3, "LaTeX as a string"),
    ("sink", sink, "passed"),
    ("sink", lambda a, d_a: a * (1 - a) * d_a, "diagonal of the Jacobian"),
    ("block", block, "passed"),
    ("block", lambda *given: given[0], "three arrays"),
]
