"""The executed and the tested equations of the chapter on sharing keys and values."""

import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, multi_head_attention_with_intermediates
from mha_book.multihead.grouped import fit_groups, kv_head_index, repeat_kv_heads
from mha_book.multihead.layer import project_heads
from tests.book.equations import executed

T, K, G, H, C, D = 7, 3, 2, 5, 11, 13  # positions, groups, members, widths
N = K * G


def layer(rng):
    shapes = ((D, N, H), (D, K, H), (D, K, C), (N, C, D))
    params = MultiHeadParams(*(jnp.asarray(rng.normal(size=s), jnp.float64) for s in shapes))
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float64)
    y, inside = multi_head_attention_with_intermediates(params, x)
    return params, x, y, inside


def grouped(array):
    """From heads first to (K, G, …)."""
    return jnp.reshape(array, (K, G, *array.shape[1:]))


@executed("gqa-projections")
def projections(rng):
    params, x, _, inside = layer(rng)
    w_q, w_k, w_v = (jnp.swapaxes(w, 0, 1) for w in params[:3])
    given = {"X": x, "W_Q": grouped(w_q), "W_K": w_k, "W_V": w_v}
    return given, {"Q": grouped(inside.query), "K": inside.key, "V": inside.value}


@executed("gqa-layer")
def rest(rng):
    params, _, y, inside = layer(rng)
    given = {"Q": grouped(inside.query), "K": inside.key, "V": inside.value}
    made = {"A": grouped(inside.weights), "O": grouped(inside.head_outputs), "Y": y}
    return given | {"W_O": grouped(params.w_o), "H": H}, made


@executed("gqa-repeat")
def repeat(rng):
    params, x, _, inside = layer(rng)
    chosen = np.eye(K)[np.asarray(kv_head_index(N, K))]
    own = project_heads(x, repeat_kv_heads(params).w_k)
    return {"J": chosen, "K": inside.key}, {"K_N": own}


@executed("gqa-fit")
def fit(rng):
    # One group: what is left over are the singular values beyond the first H.
    shapes = ((D, G, H), (D, G, H), (D, G, C), (G, C, D))
    params = MultiHeadParams(*(jnp.asarray(rng.normal(size=s), jnp.float64) for s in shapes))
    fitted = fit_groups(params, 1)
    products = jnp.einsum("dga,bga->dgb", params.w_k, params.w_q)
    left_over = jnp.linalg.svd(jnp.reshape(products, (D, G * D)))[1][H:]
    heads_first = {"W_Q": params.w_q, "W_K": params.w_k, "P": fitted.w_q}
    given = {name: jnp.swapaxes(w, 0, 1) for name, w in heads_first.items()}
    changed = jnp.einsum("bga,da->gbd", fitted.w_q, fitted.w_k[:, 0])
    error = changed - jnp.einsum("bga,dga->gbd", params.w_q, params.w_k)
    made = {"E": error, "e": jnp.sum(left_over**2)}
    return given | {"U": fitted.w_k[:, 0]}, made
