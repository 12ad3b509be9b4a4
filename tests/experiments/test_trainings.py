"""What the trainings of the experiments are made of: starts, forms, gates, formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import dropout, gates, scale, sinks_training
from experiments.scale import ARMS
from experiments.sharing_training import rate
from mha_book.models import tiny


def test_the_smaller_start_has_the_scores_of_the_scaled_arm():
    sizes, key = scale.Sizes(), jax.random.key(7)
    examples = scale.draw(jax.random.key(8), 5, sizes)
    given = {arm: scale.init(key, 64, arm, sizes) for arm in ARMS}
    assert all(
        bool((a == b).all()) for a, b in zip(given[ARMS[0]], given[ARMS[1]], strict=True)
    )  # the same start, bit for bit
    out = {arm: scale.answers(p, examples, scale.scale_of(arm, 64)) for arm, p in given.items()}
    np.testing.assert_allclose(out[ARMS[2]], out[ARMS[0]], rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(out[ARMS[1]] - out[ARMS[0]]).max()) > 0.1


def test_every_set_of_heads_once():
    """Set number s lacks the heads whose bits are 1, counted layer by layer."""
    config = tiny.TinyConfig(7, 5, 8, num_layers=2, num_heads=2)
    start = jax.jit(jax.vmap(lambda key: tiny.init_tiny(key, config)))
    params = start(jax.random.split(jax.random.key(0)))
    token_ids = jnp.array([[1, 2, 3, 4, 5, 6]])
    losses, removed = dropout.removals(params, token_ids, config)
    assert losses.shape == (2, 16)
    assert len({tuple(row) for row in removed.tolist()}) == 16
    second = jax.tree.map(lambda leaf: leaf[1], params)
    gates = jnp.array([[0.0, 1.0], [0.0, 1.0]])  # heads 0 and 2: set 1 + 4
    want = jax.jit(tiny.loss, static_argnames="config")(
        second, token_ids, config=config, gates=gates
    )
    assert losses[1, 5] == pytest.approx(float(want), rel=1e-5)


def test_the_formula_of_the_variance_at_each_place():
    """Against all that the draws can be: one pair, one head, one feature at a time."""
    config = tiny.TinyConfig(7, 4, 6, num_layers=1, num_heads=2)
    params = jax.jit(tiny.init_tiny, static_argnums=1)(jax.random.key(0), config)
    token_ids = jnp.array([[1, 5, 2, 6]])
    measured = jax.jit(dropout.noise, static_argnums=(3, 4))
    found = measured(params, token_ids, jax.random.key(1), config, 4000)
    for place in ("weights", "heads", "output"):
        ratio = found[place]["variance"] / found[place]["variance_by_formula"]
        np.testing.assert_allclose(ratio, 1.0, rtol=0.1)


def test_masks_lose_the_least_important():
    importance = np.array([[[0.3, 0.1], [0.2, 0.4]], [[0.0, 1.0], [2.0, 3.0]]])
    keep = gates.masks(importance, np.array([1, 2]))
    assert keep.astype(int).tolist() == [[[1, 0], [1, 1]], [[0, 0], [1, 1]]]


def test_the_schedule():
    at = [float(rate(jnp.float32(step), jnp.float32(24), jnp.float32(4.0))) for step in range(25)]
    assert at[:3] == [0.0, 2.0, 4.0]
    assert at[13] == pytest.approx(2.0)  # half way down
    assert at[24] == pytest.approx(0.0, abs=1e-6)
    assert np.all(np.diff(at[2:]) < 0)


CONFIG = tiny.TinyConfig(11, 12, 8, 2, 2, positions="rotary", use_bias=False)
CHARACTERS = jnp.array([[10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]])


def test_a_logit_takes_its_share_and_a_sigmoid_needs_no_others():
    """At equal scores a logit of 0 counts as one key more; sigmoid weights are 1 / (1 + T)."""
    forward = jax.jit(sinks_training.forward, static_argnums=(2, 3))
    params = sinks_training.fresh(jax.random.key(0), CONFIG, "logit")
    still = jax.tree.map(jnp.zeros_like, params)
    weights = forward(still, CHARACTERS, CONFIG, "logit")[1]
    np.testing.assert_allclose(weights[0, 0, 0, 3, :4], 1 / 5, atol=1e-6)
    assert not weights[0, 0, 0, 3, 4:].any()
    start = sinks_training.fresh(jax.random.key(0), CONFIG, "sigmoid").logit
    still = jax.tree.map(jnp.zeros_like, params)._replace(logit=start)
    weights = forward(still, CHARACTERS, CONFIG, "sigmoid")[1]
    np.testing.assert_allclose(weights[0, 0, 0, 3, :4], 1 / 13, atol=1e-6)
