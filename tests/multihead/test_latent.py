"""Latent attention: both forms against each other and against plain loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.masks import causal
from mha_book.multihead.latent import (
    Latent,
    absorbed_attention,
    compress,
    expanded_attention,
    init_latent,
)
from mha_book.rope import rotary_angles, rotate
from tests.jaxprs import shapes

D, N, T = 22, 5, 7
SIZES = {"latent_dim": 10, "head_dim": 3, "rotary_dim": 4, "value_dim": 6}
FORMS = {"expanded": expanded_attention, "absorbed": absorbed_attention}


def layer(query_latent_dim=None, dtype=jnp.float32, **changes):
    params = init_latent(
        jax.random.key(0), D, N, **SIZES, query_latent_dim=query_latent_dim, dtype=dtype
    )
    # Norms that do something.
    keys = jax.random.split(jax.random.key(1))
    norms = {"norm_c": params.norm_c, "norm_qc": params.norm_qc}
    norms = {
        name: None if w is None else 1 + 0.3 * jax.random.normal(key, w.shape, dtype)
        for key, (name, w) in zip(keys, norms.items(), strict=True)
    }
    return params._replace(**norms | changes)


def inputs(dtype=jnp.float32, length=T):
    return jax.random.normal(jax.random.key(5), (2, length, D), dtype), rotary_angles(
        jnp.arange(length), SIZES["rotary_dim"]
    )


@functools.partial(jax.jit, static_argnums=0, static_argnames="is_causal")
def run(form, params, x, angles, **structure):
    return FORMS[form](params, x, compress(params, x, angles), angles, **structure)


def norm(x, weight):
    if weight is None:
        return x
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * np.asarray(weight)


def by_hand(params, x, angles, visible):
    """One sequence, head by head and query by query."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x = np.asarray(x, np.float64)
    c = norm(x @ p.w_c, p.norm_c)
    key_r = np.asarray(rotate(jnp.asarray(x @ p.w_kr), angles))
    queries = x if p.w_qc is None else norm(x @ p.w_qc, p.norm_qc)
    y = np.zeros_like(x)
    for h in range(N):
        q = queries @ p.w_q[:, h]
        q_r = np.asarray(rotate(jnp.asarray(q[:, 3:]), angles))
        k, v = c @ p.w_uk[:, h], c @ p.w_uv[:, h]
        for i in range(len(x)):
            scores = np.array([q[i, :3] @ k[j] + q_r[i] @ key_r[j] for j in range(len(x))])
            w = np.where(visible[i], np.exp(scores / np.sqrt(7)), 0.0)
            y[i] += (w / w.sum()) @ v @ p.w_o[h]
    return y


@pytest.mark.parametrize("form, query_latent_dim", [("expanded", None), ("absorbed", 12)])
def test_against_loops(form, query_latent_dim):
    with jax.enable_x64(True):
        params = layer(query_latent_dim, jnp.float64)
        x, angles = inputs(jnp.float64)
        y = run(form, params, x, angles, is_causal=True)
        for b in range(2):
            expected = by_hand(params, x[b], angles, np.tri(T, dtype=bool))
            np.testing.assert_allclose(y[b], expected, atol=1e-6)  # the angles are float32


@functools.partial(jax.jit, static_argnums=(0, 5))
def step(form, params, x, kept, angles, i):
    new = compress(params, x, angles)
    kept = Latent(*(jnp.concatenate(pair, axis=1) for pair in zip(kept, new, strict=True)))
    return FORMS[form](params, x, kept, angles, mask=causal(query_offset=i)), kept


@pytest.mark.parametrize("form", FORMS)
def test_one_token_at_a_time(form):
    params = layer()
    x, angles = map(np.asarray, inputs())
    whole = np.asarray(run("expanded", params, x, angles, is_causal=True))
    kept = jax.jit(compress)(params, x[:, :5], angles[:5])
    for i in (5, 6):
        y, kept = step(form, params, x[:, i : i + 1], kept, angles[i : i + 1], i)
        np.testing.assert_allclose(np.asarray(y)[:, 0], whole[:, i], atol=2e-5)


def test_the_absorbed_form_makes_nothing_of_the_positions():
    # No array of its trace has both the positions that are attended to and a key for each head.
    params, (x, angles) = layer(), inputs()
    long = Latent(jnp.ones((2, 97, 10)), jnp.ones((2, 97, 4)))

    def with_positions(form):
        made = shapes(lambda *x: FORMS[form](*x), params, x, long, angles)
        return {s for s in made if 97 in s and N in s and T not in s and N * T not in s}

    assert any(s[-1] in (3, 6, 7) for s in with_positions("expanded"))
    assert with_positions("absorbed") == set()
