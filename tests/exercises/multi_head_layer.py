"""The exercises on the multi-head layer: right answers, wrong ones with hints."""

import jax.numpy as jnp
import numpy as np

from mha_book import FusedMultiHeadParams, MultiHeadParams

BEST = np.array([[1.25, 0.25], [0.25, 1.25]])


def reorder(params, order, output=True):
    order = jnp.asarray(order)
    w_o = params.w_o[order] if output else params.w_o
    return MultiHeadParams(*(w[:, order] for w in params[:3]), w_o)


def from_gpt2(c_attn, c_proj, num_heads):
    d = len(c_attn)
    into = c_attn.reshape(d, 3 * num_heads, d // num_heads)
    return FusedMultiHeadParams(into, c_proj.reshape(num_heads, d // num_heads, d))


ANSWERS = [
    ("best-one-head", lambda: BEST, "passed"),
    ("best-one-head", lambda: BEST + 0.02, "the error for"),
    ("reorder", reorder, "passed"),
    ("reorder", lambda params, order: params, "w_q is still in the old order"),
    ("from-gpt2", from_gpt2, "passed"),
    ("from-gpt2", lambda c, p, n: FusedMultiHeadParams(c, p), "w_qkv: expected shape"),
]
