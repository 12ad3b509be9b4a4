"""The exercises on splitting and combining: wrong answers with their hints."""

import jax.numpy as jnp
import numpy as np


def merge(x):
    *batch, num_heads, length, width = x.shape
    return jnp.swapaxes(x, -3, -2).reshape(*batch, length, num_heads * width)


def address(h, i, a, length, num_heads, width):
    return (i * num_heads + h) * width + a


def block(weight, h, num_heads):
    width = weight.shape[0] // num_heads
    return weight[h * width : (h + 1) * width].T


def judge(split):
    x = np.arange(3 * 10).reshape(3, 10)
    heads = np.asarray(split(x, 5))
    return heads.shape == (5, 3, 2) and all(
        (heads[h] == x[:, 2 * h : 2 * h + 2]).all() for h in range(5)
    )


ANSWERS = [
    ("merge", lambda x: x.reshape(*x.shape[:-3], x.shape[-2], -1), "does row i hold position"),
    (
        "address",
        lambda h, i, a, t, n, w: (h * t + i) * w + a,
        "one head after the other",
    ),
    ("block", lambda w, h, n: w[h * len(w) // n : (h + 1) * len(w) // n], "lying on their side"),
    ("judge", lambda split: False, "rejects split_heads itself"),
]
