"""Heads turned, merged and cut in rank, by hand and against the package."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import head_rank, heads
from experiments.papers_merging import merged, random_turns, turned
from mha_book.multihead.grouped import mean_pool_groups, repeat_kv_heads
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.parameters import init_multi_head
from mha_book.rope import rotary_angles

D, N, K, H, T = 11, 6, 3, 4, 7
run = jax.jit(multi_head_attention)


def test_the_nearest_scores_of_a_rank():
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(2, 6, 6))
    q, k = rng.normal(size=(400, 6)) @ mix[0], rng.normal(size=(300, 6)) @ mix[1] + 5.0
    one = jnp.ones((1, 400), bool)
    queries, keys = (jnp.asarray(x, jnp.float32)[None, None] for x in (q, k))
    found = head_rank.moments(queries, queries, one)._replace(
        keys=np.asarray(head_rank.moments(keys, keys, one[:, :300]).keys) * 400 / 300,
        key=k.sum(0)[None] * 400 / 300,
    )
    centred = k - k.mean(0)
    scores = q @ centred.T
    singular = np.linalg.svd(scores, compute_uv=False)
    for rank in (1, 3, 6):
        changed = q @ head_rank.cut(found, rank)[0] @ centred.T
        assert np.linalg.matrix_rank(changed, tol=1e-3) == rank
        left = np.linalg.norm(scores - changed)  # Eckart and Young: no nearer one of this rank
        assert left == pytest.approx(np.linalg.norm(singular[rank:]), rel=1e-2, abs=0.5)
        projection = head_rank.random_cut((6, 6), rank, 0)
        assert left <= np.linalg.norm(scores - q @ projection @ centred.T) + 1e-6


def test_controls_have_the_layers_of_the_top_and_none_of_its_heads():
    top = np.array([[0, 1], [0, 2], [3, 0]])
    found = heads.controls(top, (4, 4), 20, seed=1)
    assert len({str(control) for control in found}) > 5
    for control in found:
        assert control[:, 0].tolist() == [0, 0, 3]
        assert set(control[:2, 1]) == {0, 3}
        assert control[2, 1] != 0


def layer(kv_heads, bias):
    params = init_multi_head(jax.random.key(0), D, N, num_kv_heads=kv_heads, head_dim=H)
    if bias:
        b = {n: jax.random.normal(jax.random.key(i), getattr(params, f"w_{n}").shape[1:])
             for i, n in enumerate("qkv")}  # fmt: skip
        params = params._replace(**{f"b_{n}": x for n, x in b.items()})
    return params


@pytest.mark.parametrize("by_pairs", [True, False])
def test_turned_heads_compute_the_same(by_pairs):
    params = layer(K, not by_pairs)
    keys, values = random_turns(K, H, 1, by_pairs=by_pairs), random_turns(K, H, 2, by_pairs=False)
    x = jax.random.normal(jax.random.key(5), (T, D))
    angles = rotary_angles(jnp.arange(T), H, 100.0) if by_pairs else None
    one, other = (run(p, x, angles=angles) for p in (params, turned(params, keys, values)))
    np.testing.assert_allclose(one, other, atol=1e-5)
    assert abs(np.asarray(params.w_v) - np.asarray(turned(params, keys, values).w_v)).max() > 0.1


def test_merged_heads_are_copies_of_the_mean():
    params = layer(N, bias=True)
    for one, other in zip(
        merged(params, 2), repeat_kv_heads(mean_pool_groups(params, 2)), strict=True
    ):
        if one is not None:
            np.testing.assert_allclose(one, other, atol=1e-6)
