"""The measurements for the ledger of papers: the short form, heads turned and merged, the told."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import papers
from experiments.papers_merging import merged, of_few, random_turns, turned, turns
from experiments.papers_told import agreements, told
from mha_book.multihead.grouped import mean_pool_groups, repeat_kv_heads
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.parameters import init_multi_head
from mha_book.rope import rotary_angles

STORED = Path(__file__).parents[2] / "book" / "data" / "papers.json"
D, N, K, H, T = 11, 6, 3, 4, 7
run = jax.jit(multi_head_attention)


@pytest.mark.slow
@pytest.mark.needs_models
def test_the_short_form(tmp_path):
    path = papers.main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    assert document["config"] == json.loads(json.dumps(papers.QUICK._asdict()))
    assert set(document) == set(json.loads(STORED.read_text()))
    np.testing.assert_allclose(document["merged"]["aligned, not merged"],
                               document["merged"]["whole"], atol=1e-3)  # fmt: skip


def test_what_the_stored_result_tells_is_in_it():
    document = json.loads(STORED.read_text())
    assert document["config"] == json.loads(json.dumps(papers.Sizes()._asdict()))
    assert document["told"] == told(document, papers.Sizes())


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


@pytest.mark.parametrize("by_pairs", [True, False])
def test_heads_that_were_turned_apart_come_together(by_pairs):
    same = np.random.default_rng(0).normal(size=(40, H))
    apart = same @ random_turns(4, H, 3, by_pairs=by_pairs)
    found = turns(apart, 2, by_pairs=by_pairs, rounds=60)
    np.testing.assert_allclose(found @ found.transpose(0, 2, 1), np.tile(np.eye(H), (4, 1, 1)),
                               atol=1e-9)  # fmt: skip
    for one, other in ((0, 1), (2, 3)):
        np.testing.assert_allclose(apart[one] @ found[one], apart[other] @ found[other], atol=1e-6)


def test_merged_heads_are_copies_of_the_mean():
    params = layer(N, bias=True)
    for one, other in zip(
        merged(params, 2), repeat_kv_heads(mean_pool_groups(params, 2)), strict=True
    ):
        if one is not None:
            np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("over_features", [True, False])
def test_few_heads_make_all_if_there_are_only_few(over_features):
    params = layer(N, bias=True)
    whole, share = of_few(params, N, over_features=over_features)
    assert share == pytest.approx(1)
    np.testing.assert_allclose(whole.w_k, params.w_k, atol=1e-5)
    base, factors = np.random.default_rng(0).normal(size=(2, D, H)), [[1, 0], [2, 1], [0, 3]] * 2
    made = params._replace(
        w_v=jnp.asarray(np.einsum("nr,rdh->dnh", factors, base), jnp.float32),
        b_v=jnp.zeros((N, H)),
    )
    found, _ = of_few(made, 2, over_features=over_features)
    np.testing.assert_allclose(found.w_v, made.w_v, atol=1e-5)
    assert abs(np.asarray(found.w_k) - np.asarray(made.w_k)).max() > 0.1
    assert 0.3 < of_few(params, 2, over_features=over_features)[1] < 0.98


def test_agreement_is_taken_within_groups_and_between():
    found = np.full((2, 5, 9, 9), 0.25)
    for first in (0, 3, 6):
        found[..., first : first + 3, first : first + 3] = 0.5
    found[..., np.arange(9), np.arange(9)] = 1.0
    same, other = agreements(found)
    assert same.tolist() == [0.5, 0.5]
    assert other.tolist() == [0.25, 0.25]
