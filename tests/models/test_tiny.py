"""The tiny transformer: against loops by hand, its options, and what it refuses."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import tiny
from mha_book.models.tiny import TinyConfig, init_tiny
from mha_book.multihead.dropout import Dropout
from tests import oracles

CONFIG = TinyConfig(
    vocab_size=11, max_length=13, d_model=10, num_layers=2, num_heads=6, num_kv_heads=3,
    head_dim=4, d_hidden=7,
)  # fmt: skip
B, T = 2, 5
forward = jax.jit(tiny.forward, static_argnames="implementation")
token_losses = jax.jit(tiny.token_losses)


def tokens(length: int = T, vocab: int = CONFIG.vocab_size) -> jax.Array:
    drawn = np.random.default_rng(0).integers(0, vocab, (B, length))
    return jnp.asarray(drawn.astype(np.int32))


def model(config: TinyConfig = CONFIG, seed: int = 0):
    """Parameters, biases and norms included, that are all different from zero and one."""
    rng = np.random.default_rng(seed)

    def leaf(path, like):
        is_scale = "norm.weight" in jax.tree_util.keystr(path)
        return jnp.asarray(is_scale + 0.4 * rng.standard_normal(like.shape), like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, shapes(config))


def shapes(config: TinyConfig):
    """The form of the parameters, without drawing any."""
    return jax.eval_shape(lambda: init_tiny(jax.random.key(0), config))


def norm(x, p):
    centered = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return centered / scale * p.weight + p.bias


def by_hand(params, token_ids, config=CONFIG):
    """Logits in float64, one sequence and one head at a time."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    logits = []
    for row in np.asarray(token_ids):
        x = p.token_embedding[row]
        if p.position_embedding is not None:
            x = x + p.position_embedding[: len(row)]
        for layer in p.layers:
            inputs, seen = norm(x, layer.attention_norm), np.tri(len(row), dtype=bool)
            x = x + oracles.layer(layer.attention, inputs, visible=seen)
            if layer.widen is not None:
                z = norm(x, layer.feed_forward_norm) @ layer.widen.weight + layer.widen.bias
                z = z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
                x = x + z @ layer.narrow.weight + layer.narrow.bias
        logits.append(norm(x, p.output_norm) @ p.unembedding)
    return np.array(logits)


@pytest.mark.parametrize("changes", [{}, {"d_hidden": 0}, {"positions": "none"}])
def test_against_loops(changes):
    config = dataclasses.replace(CONFIG, **changes)
    params = model(config)
    got = forward(params, tokens(), config=config)
    np.testing.assert_allclose(got, by_hand(params, tokens(), config), rtol=1e-4, atol=1e-4)
    assert (params.layers[0].widen is None) == (config.d_hidden == 0)


def test_the_loss_by_hand():
    params = model()
    logits = by_hand(params, tokens()[:, :-1])
    logits -= logits.max(-1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    ids = np.asarray(tokens())
    wanted = [[-math.log(chances[b, i, ids[b, i + 1]]) for i in range(T - 1)] for b in range(B)]
    got = token_losses(params, tokens(), config=CONFIG)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
    assert jax.jit(tiny.loss)(params, tokens(), config=CONFIG) == pytest.approx(
        np.mean(wanted), rel=1e-5
    )


def test_dropout_needs_a_key_and_acts_in_every_layer():
    config = dataclasses.replace(CONFIG, dropout=Dropout(0.2, 0.2, 0.2))
    params = model()
    off = forward(params, tokens(), config=CONFIG)
    keys = [jax.random.key(1), jax.random.key(2)]
    on = [forward(params, tokens(), config=config, rng_key=key) for key in keys]
    assert not np.allclose(*on, atol=1e-2)
    np.testing.assert_array_equal(forward(params, tokens(), config=config), off)
    again = forward(params, tokens(), config=config, rng_key=keys[0])
    np.testing.assert_array_equal(on[0], again)
    gates = jnp.ones((2, 6)).at[0].set(0.0)  # the second layer alone still drops
    alone = [forward(params, tokens(), config=config, rng_key=k, gates=gates) for k in keys]
    assert not np.allclose(*alone, atol=1e-2)
