"""The exercises on the matrices of a head: wrong answers with their hints."""

import jax.numpy as jnp

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
    ("effective-rank", lambda s: s.sum() ** 2 / (s**2).sum(), "of the squares and of the fourth"),
    ("form", lambda w_q, w_k, h: form(w_q, w_k, h).T, "the transpose"),
    ("double", lambda p, h: double(p, h, share=0.0), "head 3 is idle"),
]
