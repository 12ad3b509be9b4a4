"""What heads write and read: composition and norms of weights, shares of stream and logits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams
from mha_book.models import tiny
from mha_book.specialization.composition import block_norms, composition
from mha_book.specialization.contribution import (
    direct_logit_attribution,
    logit_directions,
    residual_norm_ratios,
    uniform_outputs,
)

pytestmark = pytest.mark.unoptimized
D, N, H, C, T = 23, 6, 3, 5, 7
rng = np.random.default_rng(11)


def layer(num_kv_heads, scale=1.0):
    shapes = [(D, N, H), (D, num_kv_heads, H), (D, num_kv_heads, C), (N, C, D)]
    return MultiHeadParams(*(jnp.asarray(rng.normal(size=s) * scale, jnp.float32) for s in shapes))


def products(params, gain=1.0):
    """W_Q W_K^T and W_V W_O of every head as full matrices, in float64."""
    w_q, w_k, w_v, w_o = (np.asarray(w, np.float64) for w in params[:4])
    w_q, w_k, w_v = (np.reshape(gain, (-1, 1, 1)) * w for w in (w_q, w_k, w_v))
    group = N // w_k.shape[1]
    qk = [w_q[:, h] @ w_k[:, h // group].T for h in range(N)]
    return qk, [w_v[:, h // group] @ w_o[h] for h in range(N)]


def test_composition_is_that_of_the_full_matrices():
    earlier, later, gain = layer(2), layer(3), rng.uniform(1, 2, D)
    found = jax.jit(composition)(earlier, later, jnp.asarray(gain, jnp.float32))
    writes, (qk, ov) = products(earlier)[1], products(later, gain)
    norm = np.linalg.norm
    for i, j in np.ndindex(N, N):
        for got, read in ((found.query, qk[j]), (found.key, qk[j].T), (found.value, ov[j])):
            wanted = norm(writes[i] @ read) / (norm(writes[i]) * norm(read))
            assert float(got[i, j]) == pytest.approx(wanted, rel=1e-4)


def test_composition_of_unrelated_heads_is_one_over_root_d():
    squares = [np.square(np.stack(jax.jit(composition)(layer(N), layer(N)))) for _ in range(20)]
    assert math.sqrt(np.mean(squares)) == pytest.approx(1 / math.sqrt(D), rel=0.03)


def test_block_norms_and_what_they_leave_open():
    params = layer(2)
    found = jax.jit(block_norms)(params)
    np.testing.assert_allclose(found.w_o, np.linalg.norm(params.w_o, axis=(1, 2)), rtol=1e-5)
    wanted = [np.linalg.norm(m) for m in products(params)[1]]
    np.testing.assert_allclose(found.w_v_w_o, wanted, rtol=1e-5)
    # The same layer, written with larger values and smaller blocks.
    same = block_norms(params._replace(w_v=3 * params.w_v, w_o=params.w_o / 3))
    np.testing.assert_allclose(same.w_v_w_o, found.w_v_w_o, rtol=1e-5)
    np.testing.assert_allclose(same.w_o, found.w_o / 3, rtol=1e-5)


def test_direct_shares_add_up_to_the_logits():
    config = tiny.TinyConfig(13, d_model=10, num_heads=2, num_kv_heads=1, d_hidden=0)
    shapes = jax.eval_shape(lambda key: tiny.init_tiny(key, config), jax.random.key(1))
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)
    ids = jnp.asarray(rng.integers(0, 13, (2, T)))

    @jax.jit
    def run(params, ids):
        logits, records = tiny.forward_with_intermediates(params, ids, config=config)
        layers = list(zip(params.layers, records, strict=True))
        added = [
            jnp.einsum("bntc,ncd->btd", record.intermediates.head_outputs, layer.attention.w_o)
            for layer, record in layers
        ]
        last, record = layers[-1]
        stream = record.inputs + added[-1] + last.attention.b_o[None, None]
        readout = jnp.moveaxis(params.unembedding[:, ids], 0, -1)
        directions = logit_directions(
            stream, params.output_norm.weight, readout, config.epsilon, centered=True
        )
        heads = jnp.stack(
            [
                direct_logit_attribution(
                    record.intermediates.head_outputs, layer.attention.w_o, directions
                )
                for layer, record in layers
            ]
        )  # (L, B, N, T)
        rest = records[0].inputs + sum(x.attention.b_o[None, None] for x in params.layers)
        total = heads.sum((0, 2)) + jnp.sum(rest * directions, -1)
        bias = jnp.sum(params.output_norm.bias[None, None] * readout, -1)
        logit = jnp.take_along_axis(logits, ids[..., None], -1)[..., 0]
        own = residual_norm_ratios(
            records[0].intermediates.head_outputs, params.layers[0].attention.w_o, records[0].inputs
        )
        return total + bias, logit, own, added[0], records[0].inputs

    total, logit, own, added, inputs = run(params, ids)
    np.testing.assert_allclose(total, logit, atol=1e-5)
    assert own.shape == (2, 2, T)
    whole = np.linalg.norm(added, axis=-1) / np.linalg.norm(inputs, axis=-1)
    assert (np.asarray(own).sum(1) >= whole - 1e-5).all()  # norms of parts and of their sum


def test_uniform_outputs_are_means_of_the_values():
    value = rng.normal(size=(1, 2, T, C))
    found = uniform_outputs(
        jnp.asarray(value, jnp.float32), jnp.asarray(np.tril(np.ones((1, T, T), bool))), 4
    )
    for h, i in np.ndindex(4, T):
        np.testing.assert_allclose(found[0, h, i], value[0, h // 2, : i + 1].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: composition(layer(2), layer(2)._replace(w_k=jnp.ones((D + 1, 2, H)))),
            "later: expected inputs as wide as what earlier writes, 23",
        ),
        (
            lambda: residual_norm_ratios(
                jnp.ones((1, 2, 3, 4)), jnp.ones((2, 5, 6)), jnp.ones((1, 3, 6))
            ),
            r"head_outputs: expected axes \(B, N, T, C\) with N, C = \(2, 5\)",
        ),
        (
            lambda: uniform_outputs(jnp.ones((1, 2, 2, 1)), jnp.ones((1, 2, 2), bool), 3),
            "num_heads: expected a multiple of 2; got 3",
        ),
    ],
)
def test_bad_input(no_type_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
