"""Removing heads: smaller parameters, importance of every kind, orders, learned gates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, multi_head_attention, multi_head_attention_with_intermediates
from mha_book.models.tiny import TinyConfig, forward, init_tiny
from mha_book.multihead.cache import cached_multi_head_attention, init_cache
from mha_book.multihead.parameters import check_params
from mha_book.pruning import importance
from mha_book.pruning.order import head_mask, iterative_removal_order, removal_order
from mha_book.pruning.removal import fold_gates, mean_ablation, prune_heads
from tests import oracles

D, N, H, C, T = 11, 6, 3, 5, 7
rng = np.random.default_rng(13)
run = jax.jit(multi_head_attention)
look = jax.jit(multi_head_attention_with_intermediates)


def layer(num_kv_heads, use_bias=True):
    k = num_kv_heads
    shapes = [(D, N, H), (D, k, H), (D, k, C), (N, C, D)]
    shapes += [(N, H), (k, H), (k, C), (D,)] if use_bias else []
    return MultiHeadParams(*(jnp.asarray(rng.normal(size=s) / 3, jnp.float32) for s in shapes))


X = jnp.asarray(rng.normal(size=(2, T, D)), jnp.float32)


@pytest.mark.parametrize(
    ("num_kv_heads", "keep", "uneven", "left"),
    [
        (2, "000111", "raise", (3, 1)),  # a whole group
        (3, "010110", "raise", (3, 3)),  # one head of each group: still regular
        (2, "110001", "repeat", (3, 3)),
        (2, "110001", "pad", (4, 2)),
        (3, "000110", "repeat", (2, 2)),
        (3, "000000", "raise", (0, 0)),
    ],
)
def test_removed_heads_are_closed_gates(num_kv_heads, keep, uneven, left):
    params = layer(num_kv_heads)
    keep = np.array([int(bit) for bit in keep], bool)
    pruned = prune_heads(params, keep, uneven=uneven)
    check_params(pruned)
    assert (pruned.w_q.shape[1], pruned.w_k.shape[1]) == left
    gated = oracles.layer(jax.tree.map(np.asarray, params), np.asarray(X), gates=keep)
    np.testing.assert_allclose(run(pruned, X), gated, atol=1e-5)


def test_a_layer_without_heads_adds_its_bias():
    params = prune_heads(layer(2), np.zeros(N, bool))
    output, inside = look(params, X)
    np.testing.assert_allclose(output, np.broadcast_to(params.b_o, X.shape))
    assert inside.weights.shape == (2, 0, T, T)
    assert inside.head_outputs.shape == (2, 0, T, C)
    assert prune_heads(params, np.zeros(0, bool)).w_q.shape == (D, 0, H)  # removed again
    bare = prune_heads(layer(2, use_bias=False), np.zeros(N, bool))
    assert not np.asarray(run(bare, X)).any()
    cached, cache = jax.jit(cached_multi_head_attention)(
        params, X[:, :1], init_cache(2, 0, T, H, value_dim=C)
    )
    np.testing.assert_allclose(cached, output[:, :1])
    assert cache.lengths.tolist() == [1, 1]


class Model(NamedTuple):
    layers: tuple


class Layer(NamedTuple):
    attention: MultiHeadParams


@pytest.mark.parametrize("use_bias", [True, False])
def test_means_in_the_place_of_heads_change_nothing_on_average(use_bias):
    params, keep = layer(2, use_bias), np.array([[1, 0, 1, 1, 0, 1]], np.float32)
    whole, inside = look(params, X)
    means = inside.head_outputs.mean((0, 2))
    changed = mean_ablation(Model((Layer(params),)), jnp.asarray(keep), means[None])
    found = run(changed.layers[0].attention, X, gates=jnp.asarray(keep[0]))
    np.testing.assert_allclose(found.mean((0, 1)), whole.mean((0, 1)), atol=1e-5)
    # Position by position: the kept heads as they are, the others at their mean.
    outputs = np.where(keep[0][None, :, None, None], inside.head_outputs, means[None, :, None])
    bias = 0 if params.b_o is None else params.b_o
    wanted = np.einsum("bntc,ncd->btd", outputs, params.w_o) + np.asarray(bias)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


WORTH = jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)


def toy(worth, gates, x):
    """A loss whose importances are known: linear, but for two heads that do the same."""
    alone = jnp.sum(worth * gates)
    return x * (5.0 - alone) + x * 4.0 * (1 - gates[0, 0]) * (1 - gates[0, 1])


def test_importances_of_a_known_loss():
    gates, xs = jnp.ones((2, 3)), jnp.array([2.0, -1.0, 4.0])
    worth = np.asarray(WORTH, np.float64)
    for score, scale in (("ablation", 5 / 3), ("taylor", 5 / 3), ("gate_gradient", 7 / 3)):
        of_one = getattr(importance, score)
        found = np.mean([of_one(toy, WORTH, gates, x) for x in xs], axis=0)
        wanted = scale * (abs(worth) if score == "gate_gradient" else worth)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    # With one of the two alike gone, the other is needed: the gradient, at that point, knows.
    closed = gates.at[0, 0].set(0.0)
    for score in (importance.ablation, importance.taylor):
        found = np.asarray(jax.jit(score, static_argnums=0)(toy, WORTH, closed, 1.0))
        assert found[0, 1] == pytest.approx(4 + worth[0, 1], rel=1e-5)
        assert found[0, 0] == 0


@pytest.mark.parametrize(
    ("dtype", "size"), [("float16", 300), ("float32", 8e37), ("float32", 1e-30)]
)
def test_layers_are_normalized_whatever_their_size(dtype, size):
    scores = jnp.array([[3.0 * size, -4.0 * size], [0.0, 0.0]], dtype)
    found = jax.jit(importance.normalize_layers)(scores)
    np.testing.assert_allclose(found, [[0.6, -0.8], [0, 0]], rtol=1e-3)


def test_the_weight_norm_of_layers_of_unequal_sizes(no_type_checks):
    params = layer(N)
    smaller = prune_heads(params, np.arange(N) > 0)
    norms = importance.weight_norm(Model((Layer(params), Layer(params))))
    ov = np.einsum("dnc,nce->nde", params.w_v, params.w_o)
    np.testing.assert_allclose(norms, [np.linalg.norm(ov, axis=(1, 2))] * 2, rtol=1e-5)
    with pytest.raises(ValueError, match=r"params: expected .* equally many heads; got \[6, 5\]"):
        importance.weight_norm(Model((Layer(params), Layer(smaller))))


def test_orders_sort_by_importance_and_not_by_number():
    scores = rng.permutation(12).reshape(3, 4)
    order = removal_order(scores)
    assert scores[tuple(order.T)].tolist() == list(range(12))
    keep = head_mask(order, round(0.3 * 12), (3, 4))
    assert (keep == (scores >= 4)).all()
    with pytest.raises(ValueError, match=r"order: expected each head once; got \[\[1, 1\]\] again"):
        head_mask([[1, 1], [0, 2], [1, 1]], 3, (3, 4))  # would remove two heads
    assert (~head_mask([[1, 1], [0, 2]], 2, (3, 4))).sum() == 2
    by_group = removal_order(scores, group_size=2)
    sums = scores.reshape(3, 2, 2).sum(-1)
    assert (by_group[0::2] // [1, 2] == by_group[1::2] // [1, 2]).all()
    totals = [sums[layer, head // 2] for layer, head in by_group[::2]]
    assert totals == sorted(totals)


def test_ranking_again_keeps_one_of_two_that_are_alike():
    # Heads 0 and 1 of layer 0 do the same, and are worth least as long as both are there.
    worth = jnp.array([[0.1, 0.2, 1.0], [2.0, 3.0, 0.5]])
    score = jax.jit(lambda gates: importance.ablation(toy, worth, gates, 1.0))
    once = removal_order(score(jnp.ones((2, 3))))
    again = iterative_removal_order(score, (2, 3), 4)
    assert once[:2].tolist() == [[0, 0], [0, 1]]
    assert again.tolist() == [[0, 0], [1, 2], [0, 2], [1, 0]]
    in_pairs = iterative_removal_order(score, (2, 3), 4, per_round=2)
    assert in_pairs[:2].tolist() == once[:2].tolist()

    def loss(order):
        gates = head_mask(order, 2, (2, 3)).astype(np.float32)
        return float(toy(worth, jnp.asarray(gates), 1.0))

    assert loss(again) < loss(once) - 3


def test_first_and_second_order_are_all_there_is_to_a_quadratic_loss():
    half = rng.normal(size=(6, 6))
    curved, slope = jnp.asarray(half @ half.T), jnp.asarray(rng.normal(size=6))

    def loss(params, gates, x):
        closed = 1 - jnp.ravel(gates)
        return x * (closed @ params @ closed / 2 + slope @ closed)

    gates = jnp.asarray(rng.uniform(size=(2, 3)))
    without, first, second = (
        np.asarray(jax.jit(score, static_argnums=0)(loss, curved, gates, 3.0))
        for score in (importance.ablation, importance.taylor, importance.curvature)
    )
    np.testing.assert_allclose(first + second, without, rtol=1e-5, atol=1e-5)
    wanted = 1.5 * np.asarray(gates) ** 2 * np.diag(curved).reshape(2, 3)
    np.testing.assert_allclose(second, wanted, rtol=1e-5)


def test_folded_gates_do_what_gates_do() -> None:
    config = TinyConfig(vocab_size=7, d_model=8, num_heads=2)
    params, ids = init_tiny(jax.random.key(3), config), jnp.array([[1, 2, 3, 4]])
    gates = jnp.array([[0.3, 0.0], [1.0, 2.0]])
    run = jax.jit(lambda params, gates: forward(params, ids, config=config, gates=gates))
    folded = run(fold_gates(params, gates), None)
    np.testing.assert_allclose(folded, run(params, gates), atol=1e-5)
