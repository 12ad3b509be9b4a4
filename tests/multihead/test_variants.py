"""The layer with one line changed, against plain loops: sinks, differential attention, QK norms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.masks import padding
from mha_book.multihead.differential import differential_attention
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.multihead.qk_norm import clip_queries_and_keys
from mha_book.multihead.sinks import sigmoid_attention, sink_logit_attention
from mha_book.rope import rotary_angles

pytestmark = pytest.mark.unoptimized

D, N, K, H, C, T = 11, 6, 3, 4, 8, 5
X = np.random.default_rng(9).normal(size=(T, D))


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def layer(kv_heads=K):
    shapes = ((D, N, H), (D, kv_heads, H), (D, kv_heads, C), (N, C, D))
    return MultiHeadParams(*(draw(n, *shape) for n, shape in enumerate(shapes)))


def softmax(row, h):
    e = np.exp(row - row.max())
    return e / e.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain(p):
    """Queries, keys and values of a layer by NumPy, (heads, T, width)."""
    return [np.einsum("ib,bha->hia", X, np.asarray(w)) for w in (p.w_q, p.w_k, p.w_v)]


def heads_of(q, k, v, weigh=softmax):
    """Outputs of the heads, (N, T, C), one query after the other, causal."""
    group, out = len(q) // len(k), np.zeros((len(q), T, v.shape[-1]))
    for h, i in np.ndindex(len(q), T):
        row = np.array([q[h, i] @ k[h // group, j] for j in range(i + 1)]) / np.sqrt(q.shape[-1])
        out[h, i] = weigh(row, h) @ v[h // group, : i + 1]
    return out


def joined(heads, p):
    return np.einsum("hic,hcd->id", heads, np.asarray(p.w_o))


def run(function, *arguments, **options):
    return np.asarray(jax.jit(lambda *a: function(*a, is_causal=True, **options))(*arguments))


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_sink_logit():
    p, s = layer(), np.asarray(draw(31, N))
    heads = heads_of(*plain(p), lambda row, h: np.exp(row) / (np.exp(s[h]) + np.exp(row).sum()))
    same(run(sink_logit_attention, p, jnp.asarray(s), jnp.asarray(X)), joined(heads, p))
    nobody = jnp.zeros((1, T, T), bool)
    for sink in (-jnp.inf, 0.0, jnp.inf):
        assert not sink_logit_attention(p, jnp.full(N, sink), jnp.asarray(X), mask=nobody).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sigmoid_attention_is_zero_on_what_nobody_sees(value):
    """Zero times NaN is NaN: hidden positions are emptied before the products."""
    p, mask = layer(), padding(jnp.asarray(3), jnp.asarray(3))
    found = sigmoid_attention(p, jnp.asarray(X).at[3:].set(value), mask=mask, offset=-0.7)
    q, k, v = plain(p)
    weights = sigmoid(np.einsum("hia,hja->hij", q, np.repeat(k, 2, 0)) / np.sqrt(H) - 0.7)
    weights[:, 3:], weights[..., 3:] = 0, 0
    same(found, joined(weights @ np.repeat(v, 2, 0), p))


def test_differential():
    p, w_q2, w = layer(), draw(21, D, N, H), draw(22, D, N)
    one, two = heads_of(*plain(p)), heads_of(*plain(p._replace(w_q=w_q2)))
    share = sigmoid(X @ np.asarray(w)).T[..., None]
    found = run(differential_attention, p, w_q2, w, jnp.asarray(X))
    same(found, joined(one - share * two, p))
    angles = rotary_angles(jnp.arange(T), H)  # both queries are rotated
    turned = run(differential_attention, p, p.w_q, 1.0, jnp.asarray(X), angles=angles)
    same(turned, np.zeros((T, D)))


def test_the_share_of_the_second_query_can_be_learned():
    """A number of JAX has a gradient, where one of Python has none."""
    p, x, w = layer(), jnp.asarray(X), draw(20, D, N, H)
    run_at = lambda share: differential_attention(p, w, share, x)  # noqa: E731
    same(run_at(jnp.asarray(0.3)), np.asarray(run_at(0.3)))
    slope = jax.grad(lambda share: run_at(share).sum())(jnp.asarray(0.3))
    by_difference = (run_at(0.8) - run_at(-0.2)).sum()  # it is linear
    np.testing.assert_allclose(slope, by_difference, rtol=1e-9)


def test_clipped_scores():
    def largest(p):
        q, k, _ = plain(p)
        return np.einsum("hia,hja->hij", q, k).max(axis=(1, 2)) / np.sqrt(H)

    p = layer(N)
    before = largest(p)
    limit = float(np.median(before))
    clipped = clip_queries_and_keys(p, jnp.asarray(before), limit)
    same(largest(clipped), np.minimum(before, limit))
    assert 0 < (before > limit).sum() < N
    unknown = jnp.asarray(before).at[2].set(jnp.nan)
    with pytest.raises(ValueError, match="largest_scores: expected numbers"):
        clip_queries_and_keys(p, unknown, limit)
    traced = jax.jit(clip_queries_and_keys, static_argnums=2)(p, unknown, limit)
    assert np.isnan(traced.w_q).any(axis=(0, 2)).tolist() == [h == 2 for h in range(N)]
