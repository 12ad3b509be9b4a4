"""The exercises on the matrices of a head: right answers, wrong ones with hints."""

import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams


def effective(sigma):
    return (sigma**2).sum() ** 2 / (sigma**4).sum()


def form(w_q, w_k, h):
    return w_q[:, h] @ w_k[:, h // (w_q.shape[1] // w_k.shape[1])].T


def double(params, h, share=0.5, total=1.0):
    into = [jnp.concatenate([w, w[:, h : h + 1]], axis=1) for w in params[:3]]
    own = params.w_o[h : h + 1]
    w_o = params.w_o.at[h].set((total - share) * params.w_o[h])
    return MultiHeadParams(*into, jnp.concatenate([w_o, share * own]))


ANSWERS = [
    ("effective-rank", effective, "passed"),
    ("effective-rank", lambda s: s.sum() ** 2 / (s**2).sum(), "of the squares and of the fourth"),
    ("effective-rank", lambda s: float(np.count_nonzero(s)), "that is the rank"),
    ("effective-rank", lambda s: 1.0, "of 2, 2, 2, 0 is 3.00; got 1.00"),
    ("form", form, "passed"),
    ("form", lambda w_q, w_k, h: form(w_q, w_k, h).T, "the transpose"),
    ("form", lambda w_q, w_k, h: form(w_q, w_k, h) / np.sqrt(2), "factor of the scores"),
    (
        "form",
        lambda w_q, w_k, h: w_q[:, h] @ w_k[:, h % w_k.shape[1]].T,
        "head 1 uses key head 0, not 1",
    ),
    ("form", lambda w_q, w_k, h: w_q[:, h].T @ w_k[:, 0], "expected shape (5, 5)"),
    ("form", lambda w_q, w_k, h: np.ones((5, 5)), "entries of head 0 are not"),
    ("double", double, "passed"),
    ("double", lambda p, h: double(p, h, share=0.3), "passed"),
    ("double", lambda p, h: double(p, h, share=0.0), "head 3 is idle"),
    ("double", lambda p, h: double(p, h, share=1.0), "head 1 is idle"),
    ("double", lambda p, h: double(p, h, share=1.0, total=2.0), "counted twice"),
    ("double", lambda p, h: double(p, h, share=0.7, total=2.0), "something else"),
    ("double", lambda p, h: p, "expected 4 heads"),
    ("double", lambda p, h: p.w_q, "expected MultiHeadParams"),
    ("double", lambda p, h: double(p, 0), "w_q: the last head should"),
]
