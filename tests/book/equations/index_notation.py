"""The equations of the chapter on index notation and of its manual, all run from the page."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import attend_with_lse, init_multi_head, multi_head_attention_with_intermediates
from mha_book.heads import combine_heads
from tests.book.equations import executed, fed
from tests.book.equations.gradients import backward

T, N, K, H, C, D = 3, 6, 2, 5, 7, 11  # positions, heads, key heads, features of key, value, model


@executed("index-product")
def product(rng):
    w, x = rng.normal(size=(3, 5)), rng.normal(size=5)
    return {"W": w, "x": x}, {"y": w @ x}


def layer(rng, **options):
    """The layer's arrays as the page has them, and what the package computes."""
    params = init_multi_head(jax.random.key(3), D, N, head_dim=H, value_dim=C, **options)
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    y, inside = multi_head_attention_with_intermediates(params, x)
    names = ("W_Q", "W_K", "W_V")
    arrays = {"X": x, "W_O": params.w_o, "d_k": H}
    arrays |= {name: jnp.swapaxes(w, 0, 1) for name, w in zip(names, params[:3], strict=True)}
    operands = (inside.query, inside.key, inside.value)
    _, lse = attend_with_lse(*operands, implementation="reference", layout="NTH")
    computed = dict(zip("QKV", operands, strict=True))
    computed |= {"A": inside.weights, "O": inside.head_outputs, "Y": y}
    return arrays, computed | {"S": jnp.log(inside.weights) + lse[..., None]}


def whole(rng):
    """All of a layer, and forms that pages give it: side by side, a matrix for the scores."""
    arrays, found = layer(rng)
    w_q, w_k = (np.asarray(arrays[name]) for name in ("W_Q", "W_K"))
    found |= {"O_widehat": combine_heads(found["O"]), "W": arrays["W_O"].reshape(N * C, D), "H": H}
    return arrays | found | dict.fromkeys(("Gamma", "W_QK"), w_q @ np.swapaxes(w_k, 1, 2))


fed("index-query", whole, "X W_Q", "Q")
fed("index-key", whole, "X W_K", "K")
fed("index-value", whole, "X W_V", "V")
fed("index-scores", whole, "Q K d_k", "S")
fed("index-heads", whole, "A V", "O")
fed("index-output", whole, "O W_O", "Y")


@executed("index-weights")
def softmax_of_scores(rng):
    _, computed = layer(rng)
    scores = np.einsum("hia,hja->hij", computed["Q"], computed["K"]) / np.sqrt(H)
    return {"S": scores}, {"A": computed["A"]}


@executed("index-bias", broadcast=("i",))
def bias(rng):
    params = init_multi_head(jax.random.key(3), D, N, head_dim=H, use_bias=True)
    params = params._replace(b_q=jnp.asarray(rng.normal(size=(N, H)), jnp.float32))
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    _, inside = multi_head_attention_with_intermediates(params, x)
    arrays = {"X": x, "W_Q": jnp.swapaxes(params.w_q, 0, 1), "b_Q": params.b_q}
    return arrays, {"Q": inside.query}


@executed("index-grouped")
def grouped(rng):
    _, computed = layer(rng, num_kv_heads=K)
    by_group = {name: computed[name].reshape(K, N // K, T, -1) for name in "QS"}
    return {"Q": by_group["Q"], "K": computed["K"], "d_k": H}, {"S": by_group["S"]}


fed("index-gradient-query", backward, "X dL_dQ", "dL_dW_Q")
fed("index-match", whole, "W_Q W_K", "Gamma")


@executed("index-linear")
def linear(rng):
    _, computed = layer(rng)
    q, k, v = (computed[name] for name in "QKV")
    return {"Q": q, "K": k, "V": v}, {"O": jnp.matmul(q, jnp.matmul(jnp.swapaxes(k, -1, -2), v))}


# The notation's manual.

fed("index-order", whole, "X W_Q W_K d_k", "S")


@executed("index-transpose")
def transpose(rng):
    w = rng.normal(size=(3, 5))
    return {"W": w}, {"Z": w.T}


@executed("index-trace")
def trace(rng):
    w = rng.normal(size=(5, 5))
    return {"W": w}, {"s": np.trace(w)}


@executed("index-diagonal")
def diagonal(rng):
    w = rng.normal(size=(5, 5))
    return {"W": w}, {"z": np.diagonal(w)}


@executed("index-delta")
def delta(rng):
    # The page has one letter on both sides: x comes out as it went in.
    x = rng.normal(size=5)
    return {"x": x}, {"x": x}


fed("index-gradient-softmax", backward, "A dL_dA", "dL_dS")
