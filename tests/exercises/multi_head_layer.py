"""The exercises on the multi-head layer: wrong answers with their hints."""

import jax.numpy as jnp
import numpy as np

from mha_book import FusedMultiHeadParams, MultiHeadParams

BEST = np.array([[1.25, 0.25], [0.25, 1.25]])


def reorder(params, order, output=True):
    order = jnp.asarray(order)
    w_o = params.w_o[order] if output else params.w_o
    return MultiHeadParams(*(w[:, order] for w in params[:3]), w_o)


ANSWERS = [
    ("best-one-head", lambda: BEST + 0.02, "the error for"),
    ("reorder", lambda params, order: params, "w_q is still in the old order"),
    ("from-gpt2", lambda c, p, n: FusedMultiHeadParams(c, p), "w_qkv: expected shape"),
]
