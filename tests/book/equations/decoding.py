"""The executed and the tested equations of the chapter on writing one token."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.attention.reference import scores as scores_of
from mha_book.costs import (
    attention_size,
    forward_matmul_flops,
    kv_cache_bytes,
    latent_size,
    traced_matmul_flops,
)
from mha_book.multihead.cache import init_cache
from mha_book.multihead.layer import project_heads
from tests.book.equations import executed, tested

T, K, G, H, C, D, Z, P = 7, 3, 2, 5, 11, 13, 17, 4  # positions, groups, members, widths
N = K * G


@executed("gqa-intensity")
def intensity(rng):
    sizes = ((N, 1, H), (K, T, H), (K, T, C))  # one query a head; keys; values
    shapes = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]

    def step(q, k, v):
        weights = jnp.repeat(k, G, axis=0) @ jnp.swapaxes(q, -1, -2)  # (N, S, 1)
        return jnp.swapaxes(weights, -1, -2) @ jnp.repeat(v, G, axis=0)

    counted = traced_matmul_flops(step, *shapes)
    given = {"N": N, "K": K, "G": G, "S": T, "H": H, "C": C, "n_bytes": 4}
    return given, {"I": counted / (4 * sum(x.size for x in jax.tree.leaves(shapes[1:])))}


@executed("gqa-crossing")
def crossing(rng):
    # A model whose weights are as many bytes as the caches of its layers at 19 positions.
    batch, layers, positions = 2, 3, 19
    cache = jax.eval_shape(lambda: init_cache(batch, K, positions, H, value_dim=C))
    weights = 4 * layers * sum(x.size for x in jax.tree.leaves((cache.keys, cache.values)))
    given = {"M_W": weights, "B": batch, "n_layers": layers, "n_bytes": 4, "K": K, "H": H, "C": C}
    return given, {"S": float(positions)}


def latent_arrays(rng):
    shapes = {"Z": (T, Z), "W_UK": (N, Z, H), "W_UV": (N, Z, C), "Q": (N, T, H)}
    return {name: jnp.asarray(rng.normal(size=s), jnp.float64) for name, s in shapes.items()}


@executed("gqa-latent")
def latent(rng):
    arrays = latent_arrays(rng)
    keys = project_heads(arrays["Z"], jnp.swapaxes(arrays["W_UK"], 0, 1))
    scores = scores_of(arrays["Q"], keys, None, 1.0)
    return {name: arrays[name] for name in ("Z", "W_UK", "Q")}, {"K": keys, "S": scores}


@executed("gqa-latent-values")
def latent_values(rng):
    arrays = latent_arrays(rng)
    values = project_heads(arrays["Z"], jnp.swapaxes(arrays["W_UV"], 0, 1))
    weights = jnp.abs(jnp.asarray(rng.normal(size=(N, T, T)), jnp.float64))
    given = {"Z": arrays["Z"], "W_UV": arrays["W_UV"], "A": weights}
    return given, {"O": jnp.matmul(weights, values)}


@executed("dec-choice")
def choice(rng):
    shared = attention_size(D, N, K, H, C)
    latent = latent_size(D, N, Z, H, P, C, is_absorbed=True)
    kept = kv_cache_bytes(shared, position_count=1, bytes_per_element=2)
    even = forward_matmul_flops(latent, pair_count=1) / kept
    given = {"N": N, "D_Z": Z, "H_rot": P, "n_bytes": 2, "K": K, "H": H, "C": C}
    return given, {"I_even": even}


@tested(
    "dec-draft",
    latex=(
        r"\sum_{n=0}^{n_{\text{draft}}} \left(p_{\text{acc}}\right)^{n} = "
        r"\frac{1 - \left(p_{\text{acc}}\right)^{n_{\text{draft}} + 1}}{1 - p_{\text{acc}}}"
    ),
)
def draft(rng):
    # What a pass gives, drawn: guesses up to the first that is rejected, and one token more.
    chance, guesses = 0.8, 4
    kept = np.cumprod(rng.random((200_000, guesses)) < chance, axis=1).sum(axis=1)
    return round(float(kept.mean() + 1), 1), round((1 - chance ** (guesses + 1)) / (1 - chance), 1)
