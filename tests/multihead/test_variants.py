"""Sinks and differential attention at their edges; their equations are executed."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.multihead.differential import differential_attention
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.multihead.sinks import sink_logit_attention
from mha_book.rope import rotary_angles

D, N, K, H, C, T = 11, 6, 3, 4, 8, 5


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def layer(kv_heads=K):
    shapes = ((D, N, H), (D, kv_heads, H), (D, kv_heads, C), (N, C, D))
    return MultiHeadParams(*(draw(n, *shape) for n, shape in enumerate(shapes)))


X = draw(9, T, D)


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_sink_alone_gives_zero():
    nobody = jnp.zeros((1, T, T), bool)
    for sink in (-jnp.inf, 0.0, jnp.inf):
        assert not sink_logit_attention(layer(), jnp.full(N, sink), X, mask=nobody).any()


def test_differential_attention_rotates_both_queries():
    p, angles = layer(), rotary_angles(jnp.arange(T), H)
    found = differential_attention(p, p.w_q, 1.0, X, angles=angles, is_causal=True)
    same(found, np.zeros((T, D)))


def test_the_share_of_the_second_query_can_be_learned():
    """A number of JAX has a gradient, where one of Python has none."""
    p, w = layer(), draw(20, D, N, H)
    run_at = lambda share: differential_attention(p, w, share, X)  # noqa: E731
    same(run_at(jnp.asarray(0.3)), run_at(0.3))
    slope = jax.grad(lambda share: run_at(share).sum())(jnp.asarray(0.3))
    same(slope, (run_at(0.8) - run_at(-0.2)).sum())  # it is linear
