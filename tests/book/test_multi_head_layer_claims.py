"""The evidence for the claims of the chapter on the multi-head layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    MultiHeadParams,
    fuse,
    identity_params,
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
)
from mha_book.multihead.layer import project_heads
from tests import oracles
from tests.book.equations.one_head_or_two import exact_pair
from tests.book.verdicts import decides
from tests.scripts import regenerate_layer_peers as peers

P, Q, Z = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.zeros(2)
PAIRS = np.array([[P, P], [Q, Q], [P, Q]])
PAIR_TARGET = PAIRS.max(axis=1, keepdims=True)


def narrow(x):
    return jnp.asarray(x, jnp.float32)


def random_layer(seed, d_model=6, num_heads=3, **sizes):
    params = init_multi_head(
        jax.random.key(seed), d_model, num_heads, use_bias=True, **{"head_dim": 5, **sizes}
    )
    keys = iter(jax.random.split(jax.random.key(seed + 100), 8))
    return jax.tree.map(lambda p: jax.random.normal(next(keys), p.shape), params)


attention = jax.jit(multi_head_attention)


def pair_error(params, layer=lambda params, x: attention(params, narrow(x))):
    return float(np.abs(layer(params, PAIRS) - PAIR_TARGET).max())


def z_error(params, layer=lambda params, x: attention(params, narrow(x))):
    """The largest error at z for the largest value of each feature, over six sequences."""
    errors = []
    for tokens in ((Z,), (Z, P), (Z, Q), (Z, P, Q), (Z, P, P), (Z, Q, Q)):
        x = np.stack(tokens)
        errors.append(np.abs(layer(params, x)[0] - x.max(axis=0)).max())
    return float(max(errors))


def one_head_with_spare(w, wanted=None, count=1):
    """One head at z that gives p and q the weight w where z has 1."""
    one, zero = jnp.ones((1, 1)), jnp.zeros((2, 1, 1))
    wanted = np.eye(2) if wanted is None else wanted  # returned for `count` times the word
    values = narrow(wanted * (1 + count * w) / (count * w))[:, None, :]
    key = jnp.full((2, 1, 1), np.log(w), jnp.float32)
    return MultiHeadParams(zero, key, values, jnp.eye(2)[None], one)


def test_one_average_and_two():
    """One head: at least 1/4 off on pp, qq, pq, with a spare token too. Two heads: exact."""
    assert pair_error(exact_pair()) < 1e-6
    zero = jnp.zeros((2, 1, 2))
    best = MultiHeadParams(zero, zero, narrow(np.eye(2) + 0.25)[:, None, :], jnp.eye(2)[None])
    assert abs(pair_error(best) - 0.25) < 1e-6
    for seed in range(40):
        single = random_layer(seed, 2, 1, head_dim=1 + seed % 5)
        by_loops = (error(single, oracles.layer) for error in (pair_error, z_error))
        assert min(by_loops) >= 0.25 - 1e-5
    # The condition: with a token to spare, one head can read p and q at once, but not twice p.
    small = one_head_with_spare(0.001)
    both = multi_head_attention(small, narrow([Z, P, Q]))[0]
    assert np.abs(both - 1).max() < 2e-3
    assert np.abs(multi_head_attention(small, narrow([Z, P, P]))[0] - P).max() > 0.9
    assert min(z_error(one_head_with_spare(w)) for w in np.logspace(-4, 4, 33)) > 0.25
    for w in (0.5, 1.0, 4.0):  # and the bound is reached
        reached = one_head_with_spare(w, np.eye(2) + 0.25, count=2)
        assert abs(z_error(reached) - 0.25) < 1e-6
    eye = np.eye(2)
    sharp = MultiHeadParams(
        jnp.zeros((2, 2, 1)), narrow(12 * (2 * eye - 1))[:, :, None], narrow(eye)[:, :, None],
        narrow(eye)[:, None, :], jnp.ones((2, 1)),
    )  # fmt: skip
    assert z_error(sharp) < 1e-4
    decides("C01", "holds if", pair_error(exact_pair()) < 1e-6, np.abs(both - 1).max() > 0.1)


def test_six_equations():
    """They are the layer without biases; with biases they are not."""
    params = init_multi_head(jax.random.key(0), 7, 3, head_dim=5, value_dim=2)
    x = np.random.default_rng(0).normal(size=(4, 7))
    y = oracles.layer(params, x)  # head by head and pair by pair, in plain loops
    biased = params._replace(b_v=jnp.ones((3, 2)))
    assert np.abs(multi_head_attention(biased, narrow(x)) - y).max() > 0.1
    assert np.abs(multi_head_attention(params, narrow(x), is_causal=True) - y).max() > 0.01
    decides("C02", "holds if", np.allclose(multi_head_attention(params, narrow(x)), y, atol=1e-5))


def test_concatenation_is_a_sum():
    """Side by side and multiplied, or each head's part added: the same."""
    params = init_multi_head(jax.random.key(1), 7, 5, head_dim=3, value_dim=2)
    x = jax.random.normal(jax.random.key(2), (4, 7))
    output, inside = multi_head_attention_with_intermediates(params, x)
    o = np.asarray(inside.head_outputs, np.float64)
    w_o = np.asarray(params.w_o, np.float64)
    wide = np.concatenate(list(o), axis=1) @ np.concatenate(list(w_o), axis=0)
    parts = np.einsum("hic,hcd->hid", o, w_o).sum(axis=0)
    np.testing.assert_allclose(wide, parts, atol=1e-12)
    decides("C03", "confirmed", np.allclose(output, parts, atol=1e-5))


@pytest.mark.needs_models
def test_fused_projection(attentions):
    """Equal to the last bit if the sums are exact, else up to rounding; 3·D columns if N = K."""
    assert fuse(attentions["SmolLM2"][0]).w_qkv.shape == (576, 15, 64)
    assert fuse(attentions["MiniLM"][0]).w_qkv.shape == (384, 36, 32)
    rng = np.random.default_rng(2)
    for params in attentions["MiniLM"]:
        for exact in (True, False):
            x = np.round(8 * rng.normal(size=(7, 384))) / 8
            p = jax.tree.map(lambda w: jnp.round(8 * w) / 8, params) if exact else params
            one = np.asarray(project_heads(narrow(x), fuse(p).w_qkv, fuse(p).b_qkv))
            weights = ((p.w_q, p.b_q), (p.w_k, p.b_k), (p.w_v, p.b_v))
            three = np.concatenate([project_heads(narrow(x), *pair) for pair in weights])
            gap = np.abs(one - three).max()
            assert gap == 0 if exact else gap <= 1e-5 * np.abs(three).max()
    decides("C12", "confirmed", gap <= 1e-5 * np.abs(three).max())


@pytest.mark.needs_models
def test_every_head_reaches_every_feature(attentions):
    """No head of either model lacks a weight to an output feature: its slice ends at W_O."""
    pairs = silent = 0
    for layers in attentions.values():
        for params in layers:
            reach = np.abs(np.asarray(params.w_o)).max(axis=1)  # (N, D)
            pairs, silent = pairs + reach.size, silent + int((reach == 0).sum())
    assert (pairs, silent) == (270 * 576 + 72 * 384, 0)
    # And every head reads all positions and all features.
    params = init_multi_head(jax.random.key(5), 6, 3)
    x = jax.random.normal(jax.random.key(6), (4, 6))

    def head_output(u, h):
        return multi_head_attention_with_intermediates(params, u)[1].head_outputs[h, 0]

    for h in range(3):
        slopes = jax.jacobian(head_output)(x, h)  # (H, T, D)
        assert (np.abs(slopes).max(axis=0) > 1e-7).all()
    decides("C40", "corrected", (np.abs(slopes).max(axis=0) > 1e-7).all())


@pytest.mark.needs_models
def test_shapes_of_projections(attentions):
    """H = D/N in both models, yet keys are shared in one, and any other width runs."""
    for name, n, k in (("SmolLM2", 9, 3), ("MiniLM", 12, 12)):
        for params in attentions[name]:
            d, heads, h = params.w_q.shape
            assert (heads, params.w_k.shape[1], heads * h) == (n, k, d)
    wide = init_multi_head(jax.random.key(0), 64, 8, head_dim=24)
    assert wide.w_q.shape == (64, 8, 24)
    assert multi_head_attention(wide, jnp.ones((5, 64))).shape == (5, 64)
    decides("C39", "holds if", heads * h == d, wide.w_q.shape[-1] == 64 // 8)


@pytest.mark.loose_promotion  # the package works in float64, but promotes to get there
def test_worked_example():
    """Eight digits, in float64; the weights behind them are those of {eq}`layer-example`."""
    with jax.enable_x64(True):
        eye = jnp.eye(2, dtype=jnp.float64)
        output = np.asarray(multi_head_attention(identity_params(2, 2, jnp.float64), eye))
    p = np.e / (np.e + 1)
    np.testing.assert_allclose(output, [[p, 0.5], [0.5, p]], atol=1e-15)
    printed = [[f"{y:.8f}" for y in row] for row in output.tolist()]
    decides(
        "C47", "confirmed", printed == [["0.73105858", "0.50000000"], ["0.50000000", "0.73105858"]]
    )


@pytest.mark.parametrize("n", [2, 3, 8])
def test_rows_that_look_at_the_diagonal(n):
    """n rows of n²; the output's diagonal belongs to the values, not to the attention."""
    output, inside = multi_head_attention_with_intermediates(identity_params(n, n), jnp.eye(n))
    own = np.diagonal(inside.weights, axis1=1, axis2=2)
    np.testing.assert_array_equal(own > 1 / n + 1e-6, np.eye(n, dtype=bool))
    eye = jnp.eye(n)
    turned, same = multi_head_attention_with_intermediates(
        identity_params(n, n), eye, eye, eye[::-1]
    )
    np.testing.assert_array_equal(same.weights, inside.weights)
    assert np.abs(turned - output).max() > 0.1
    one = multi_head_attention_with_intermediates(identity_params(n, 1), eye)[1].weights
    assert (np.argmax(one[0], axis=1) == np.arange(n)).all()
    decides("C49", "corrected", (np.argmax(one[0], axis=1) == np.arange(n)).all())


def test_without_projections():
    """Cutting alone is the layer of identity matrices: symmetric, and blind to other slices."""
    x = np.random.default_rng(3).normal(size=(5, 8))
    output = multi_head_attention(identity_params(8, 4), narrow(x))
    cut = np.stack([x[:, 2 * h : 2 * h + 2] for h in range(4)])
    wanted = np.concatenate(list(oracles.attention(cut, cut, cut)[0]), axis=1)
    changed = x.copy()
    changed[:, 2:] = 0
    blind = multi_head_attention(identity_params(8, 4), narrow(changed))
    np.testing.assert_allclose(blind[:, :2], output[:, :2], atol=1e-6)
    projected = init_multi_head(jax.random.key(7), 8, 4)
    before, after = (
        multi_head_attention_with_intermediates(projected, narrow(u))[1].head_outputs[0]
        for u in (x, changed)
    )
    order = [7, 2, 5, 0, 3, 6, 1, 4]
    other = multi_head_attention(identity_params(8, 4), narrow(x[:, order]))
    assert np.abs(other[:, np.argsort(order)] - output).max() > 0.1
    is_same, is_blind = np.allclose(output, wanted, atol=1e-5), np.abs(before - after).max() < 0.01
    decides("C46", "holds if", is_same, is_blind)


def test_capacity():
    """More heads of one width contain fewer; narrower heads have patterns of lower rank."""
    base, extra = (
        init_multi_head(jax.random.key(s), 8, n, head_dim=8) for s, n in ((8, 4), (9, 1))
    )
    into = [jnp.concatenate(pair, axis=1) for pair in zip(base[:3], extra[:3], strict=True)]
    wider = MultiHeadParams(*into, jnp.concatenate([base.w_o, 0 * extra.w_o]))
    x = jax.random.normal(jax.random.key(10), (5, 8))
    rng = np.random.default_rng(4)
    for width in (8, 2, 1):
        firsts = 0
        for _ in range(100):
            q, k = rng.normal(size=(2, 12, 8)) @ rng.normal(size=(2, 8, width))
            s = q @ k.T / np.sqrt(width)
            e = np.exp(s - s.max(axis=1, keepdims=True))
            logs = np.log(e / e.sum(axis=1, keepdims=True))
            assert np.linalg.matrix_rank(logs, tol=1e-9) == width + 1
            firsts = max(firsts, len(set(s.argmax(axis=1))))
        assert firsts == 2 if width == 1 else firsts > 2
    contains = np.allclose(attention(wider, x), attention(base, x), atol=1e-6)
    decides("C48", "holds if", contains, firsts > 2)


# What the chapter says of torch and transformers: the stored facts, and torch itself.


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("default")
def test_products_of_public_implementations(layer_peers):
    """None multiplies head by head; nn.MultiheadAttention and GPT-2 fuse, BERT and Llama do not."""
    found = peers.peer_products()
    assert found == layer_peers["products"]
    assert found["torch nn.MultiheadAttention, self-attention"] == [192, 64]
    assert found["transformers GPT2Attention"] == [192, 64]
    assert found["transformers BertSelfAttention"] == [64, 64, 64]
    assert found["transformers LlamaAttention, 2 key/value heads"] == [64, 16, 16, 64]
    decides(
        "C53",
        "holds if",
        found["torch nn.MultiheadAttention, self-attention"] == [192, 64],
        len(found["transformers BertSelfAttention"]) == 1,
    )
