"""Shared key and value heads: what sharing computes, and the conversions between layers."""

import functools
import itertools

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

pytestmark = pytest.mark.unoptimized

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
    return float(jnp.abs(a - b).max())


def value_and_gradient(function, params, x):
    """The output, and the gradients of a fixed weighting of it."""
    fixed = jnp.asarray(np.random.default_rng(9).normal(size=x.shape), x.dtype)

    def weighted(params, x):
        y = function(params, x)
        return jnp.sum(fixed * y), y

    gradients, y = jax.jit(jax.grad(weighted, argnums=(0, 1), has_aux=True))(params, x)
    return y, gradients


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_grouped_is_the_layer_with_repeated_heads(num_kv_heads):
    with jax.enable_x64(True):
        params = jax.tree.map(
            lambda p: jnp.asarray(np.asarray(p, np.float64)), layer(num_kv_heads, use_bias=True)
        )
        x = jnp.asarray(np.asarray(inputs(), np.float64))
        shared = value_and_gradient(multi_head_attention, params, x)
        wide = value_and_gradient(multi_head_attention, repeat_kv_heads(params), x)
        group = N // num_kv_heads
        summed = []
        for name, gradient in zip(params._fields, wide[1][0], strict=True):
            if name in ("w_k", "w_v", "b_k", "b_v"):  # what is shared gets the sum over its group
                shape = (*gradient.shape[:-2], num_kv_heads, group, gradient.shape[-1])
                gradient = gradient.reshape(shape).sum(axis=-2)
            summed.append(gradient)
        assert far(shared[0], wide[0]) < 1e-12
        for ours, theirs in zip(shared[1][0], summed, strict=True):
            assert far(ours, theirs) < 1e-11
        assert far(shared[1][1], wide[1][1]) < 1e-11
        expected = oracles.layer(jax.tree.map(np.asarray, params), np.asarray(x))
        assert far(shared[0], jnp.asarray(expected)) < 1e-12


CONVERSIONS = {
    "mean": jax.jit(mean_pool_groups, static_argnums=1),
    "pick": jax.jit(select_from_groups, static_argnums=1),
    "redraw": jax.jit(functools.partial(reinitialize_groups, jax.random.key(3)), static_argnums=1),
    "fit": fit_groups,
}


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("name", ["mean", "pick", "fit"])
@pytest.mark.parametrize("k", [1, 2])
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
    mean, picked = mean_pool_groups(params, 2), select_from_groups(params, 2, member=2)
    assert far(mean.w_k[:, 1], (params.w_k[:, 3] + params.w_k[:, 4] + params.w_k[:, 5]) / 3) < 1e-6
    assert (picked.w_v[:, 0] == params.w_v[:, 2]).all()
    assert (picked.w_v[:, 1] == params.w_v[:, 5]).all()
    assert (mean.w_q == params.w_q).all()
    assert (mean.w_o == params.w_o).all()


def squared_change(before, after):
    """How far the two products of every head are from what they were, all heads together."""
    before, after = repeat_kv_heads(before), repeat_kv_heads(after)

    def products(p):
        return (
            jnp.einsum("dhc,ehc->hde", p.w_q, p.w_k),
            jnp.einsum("dhc,hce->hde", p.w_v, p.w_o),
        )

    pairs = zip(products(before), products(after), strict=True)
    return [float(jnp.sum(jnp.square(a - b))) for a, b in pairs]


@pytest.mark.parametrize("k", [1, 2])
def test_the_fit_is_the_best_that_there_is(k):
    params = layer()
    best = squared_change(params, fit_groups(params, k))
    # Eckart and Young: what is lost is the sum of the squares of the other singular values.
    group = N // k
    lost = np.zeros(2)
    for g in range(k):
        heads = range(g * group, (g + 1) * group)
        qk = np.concatenate([params.w_k[:, h] @ params.w_q[:, h].T for h in heads], axis=1)
        vo = np.concatenate([params.w_v[:, h] @ params.w_o[h] for h in heads], axis=1)
        lost[0] += np.sum(np.linalg.svd(qk)[1][H:] ** 2)
        lost[1] += np.sum(np.linalg.svd(vo)[1][C:] ** 2)
    np.testing.assert_allclose(best, lost, rtol=1e-4)
    for name in ("mean", "pick", "redraw"):
        other = squared_change(params, CONVERSIONS[name](params, k))
        assert all(ours < theirs for ours, theirs in zip(best, other, strict=True))
    # Nor does any small change of it improve on it.
    fitted = fit_groups(params, k)
    for seed, name in itertools.product(range(3), ("w_q", "w_k", "w_v", "w_o")):
        weight = getattr(fitted, name)
        noise = np.random.default_rng(seed).normal(scale=1e-2, size=weight.shape)
        noise = jnp.asarray(noise, jnp.float32)
        moved = squared_change(params, fitted._replace(**{name: weight + noise}))
        assert sum(moved) > sum(best)
