"""Shared key and value heads: what sharing computes, and the conversions between layers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, multi_head_attention
from mha_book.multihead.grouped import (
    fit_groups,
    mean_pool_groups,
    reinitialize_groups,
    repeat_kv_heads,
    select_from_groups,
)
from tests import oracles

D, N, H, C, T = 22, 6, 5, 7, 11


# Compiled once for each shape, which takes less time than operation by operation.
run = jax.jit(multi_head_attention)


def layer(num_kv_heads=N, use_bias=False, head_dim=H, value_dim=C):
    """Random parameters, drawn without compiling anything."""
    rng, k = np.random.default_rng(num_kv_heads), num_kv_heads
    shapes = [(D, N, head_dim), (D, k, head_dim), (D, k, value_dim), (N, value_dim, D)]
    weights = [rng.normal(size=s) / np.sqrt(D) for s in shapes]
    shapes = [(N, head_dim), (k, head_dim), (k, value_dim), (D,)] if use_bias else []
    biases = [rng.normal(size=s) for s in shapes]
    return MultiHeadParams(*(jnp.asarray(a, jnp.float32) for a in (*weights, *biases)))


def inputs():
    return jnp.asarray(np.random.default_rng(5).normal(size=(2, T, D)), jnp.float32)


def far(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).max()


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_grouped_is_the_layer_with_repeated_heads(num_kv_heads):
    params, x = layer(num_kv_heads, use_bias=True), inputs()
    expected = oracles.layer(jax.tree.map(np.asarray, params), np.asarray(x))
    for same in (params, repeat_kv_heads(params)):
        assert far(run(same, x), expected) < 2e-5


CONVERSIONS = {
    "mean": jax.jit(mean_pool_groups, static_argnums=1),
    "pick": jax.jit(select_from_groups, static_argnums=1),
    "redraw": jax.jit(functools.partial(reinitialize_groups, jax.random.key(3)), static_argnums=1),
    "fit": fit_groups,
}


@pytest.mark.parametrize("name", ["mean", "pick", "fit"])
@pytest.mark.parametrize("k, use_bias", [(1, False), (2, True)])
def test_conversion_gives_back_what_was_shared(name, k, use_bias):
    # Heads that are copies lose nothing; from K to K nothing happens.
    shared, x = layer(k, use_bias=use_bias), inputs()
    back = CONVERSIONS[name](repeat_kv_heads(shared), k)
    again = CONVERSIONS[name](shared, k)
    expected = run(shared, x)
    assert far(run(back, x), expected) < 2e-5
    assert far(run(again, x), expected) < 2e-5


def test_mean_and_pick_by_hand():
    params = layer()
    found = params, mean_pool_groups(params, 2), select_from_groups(params, 2, member=2)
    params, mean, picked = jax.tree.map(np.asarray, found)
    assert far(mean.w_k[:, 1], (params.w_k[:, 3] + params.w_k[:, 4] + params.w_k[:, 5]) / 3) < 1e-6
    assert (picked.w_v[:, 0] == params.w_v[:, 2]).all()
    assert (picked.w_v[:, 1] == params.w_v[:, 5]).all()
    assert (mean.w_q == params.w_q).all()
    assert (mean.w_o == params.w_o).all()


def squared_change(before, after):
    """How far the two products of every head are from what they were, all heads together."""
    before, after = repeat_kv_heads(before), repeat_kv_heads(after)

    def products(p):
        return (jnp.einsum("dhc,ehc->hde", p.w_q, p.w_k), jnp.einsum("dhc,hce->hde", p.w_v, p.w_o))

    pairs = zip(products(before), products(after), strict=True)
    return [float(jnp.sum(jnp.square(a - b))) for a, b in pairs]


@pytest.mark.parametrize("k", [1, 2])
def test_the_fit_is_the_best_that_there_is(k):
    params = layer()
    best = squared_change(params, fit_groups(params, k))
    plain = jax.tree.map(np.asarray, params)
    # Eckart and Young: what is lost is the sum of the squares of the other singular values.
    group = N // k
    lost = np.zeros(2)
    for g in range(k):
        heads = range(g * group, (g + 1) * group)
        qk = np.concatenate([plain.w_k[:, h] @ plain.w_q[:, h].T for h in heads], axis=1)
        vo = np.concatenate([plain.w_v[:, h] @ plain.w_o[h] for h in heads], axis=1)
        lost[0] += np.sum(np.linalg.svd(qk)[1][H:] ** 2)
        lost[1] += np.sum(np.linalg.svd(vo)[1][C:] ** 2)
    np.testing.assert_allclose(best, lost, rtol=1e-4)
    for name in ("mean", "pick", "redraw"):
        other = squared_change(params, CONVERSIONS[name](params, k))
        assert all(ours < theirs for ours, theirs in zip(best, other, strict=True))
