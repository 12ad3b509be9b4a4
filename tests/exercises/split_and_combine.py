"""The exercises on splitting and combining: right answers, wrong ones with hints."""

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


def _round_trip(split):
    """A test that only asks whether the entries come back: every permutation passes."""
    x = np.arange(12).reshape(2, 6)
    return sorted(np.asarray(split(x, 3)).ravel()) == sorted(x.ravel())


def _symmetric(split):
    eye = np.eye(2)
    return np.asarray(split(eye, 2)).ravel().tolist() == [1.0, 0.0, 0.0, 1.0]


def _without_features(split):
    """Looks at heads and positions, with heads of width 1."""
    x = np.arange(6).reshape(2, 3)
    return np.asarray(split(x, 3))[..., 0].tolist() == x.T.tolist()


def _shape_only(split):
    return np.asarray(split(np.zeros((2, 6)), 3)).shape == (3, 2, 2)


def _any_order(split):
    """Compares sets, and so lets the heads come in any order."""
    x = np.arange(30, dtype=np.float32).reshape(3, 10)
    heads = np.asarray(split(x, 5))
    want = {x[:, 2 * h : 2 * h + 2].tobytes() for h in range(5)}
    return heads.shape == (5, 3, 2) and {head.tobytes() for head in heads} == want


ANSWERS = [
    ("merge", merge, "passed"),
    ("address", address, "passed"),
    ("block", block, "passed"),
    ("judge", judge, "passed"),
    ("merge", lambda x: x, "expected shape (3, 10) for input (2, 3, 5); got (2, 3, 5)"),
    ("merge", lambda x: x.reshape(*x.shape[:-3], x.shape[-2], -1), "does row i hold position"),
    ("merge", lambda x: x.transpose(1, 0, 2).reshape(3, 10), "Error"),
    ("merge", lambda x: jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1), "(7, 3, 10)"),
    (
        "address",
        lambda h, i, a, length, num_heads, width: (h * length + i) * width + a,
        "one head after the other",
    ),
    ("address", lambda h, i, a, length, num_heads, width: i + a, "is number"),
    ("address", lambda h, i, *rest: (h, i), "one whole number"),
    (
        "block",
        lambda w, h, n: w[h * len(w) // n : (h + 1) * len(w) // n],
        "lying on their side",
    ),
    ("block", lambda w, h, n: w[:, h * 2 : h * 2 + 2], "columns of the stored matrix"),
    ("block", lambda w, h, n: w[h::n].T, "every 3rd row"),
    ("block", lambda w, h, n: w.T, "expected shape (6, 2)"),
    ("block", lambda w, h, n: np.zeros((w.shape[1], 2)), "entries of head 0 are not"),
    ("judge", lambda split: False, "rejects split_heads itself"),
    ("judge", lambda split: np.ones(3), "expected True or False"),
    ("judge", lambda split: True, "a reshape straight to (N, T, H)"),
    ("judge", _round_trip, "a round trip alone"),
    ("judge", _symmetric, "a symmetric 2 by 2 matrix"),
    ("judge", _shape_only, "a reshape straight to (N, T, H)"),
    ("judge", _without_features, "every N-th feature"),
    ("judge", _any_order, "numbers the heads backwards"),
    ("judge", lambda split: 1 / 0, "ZeroDivisionError"),
]
