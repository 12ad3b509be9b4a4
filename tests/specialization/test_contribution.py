"""What heads write and read: composition and norms of weights, shares of stream and logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams
from mha_book.models import tiny
from mha_book.specialization.composition import composition, ov_norms
from mha_book.specialization.contribution import direct_logit_attribution, logit_directions

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


def test_the_largest_weight_has_no_gradient_of_rounding():
    """All are divided by it, which cancels: what nothing reads has a gradient of zero."""
    params = layer(N)
    w_v, w_o = params.w_v.at[0, 0, 0].set(9.0), params.w_o.at[0, 0].set(0.0)
    gradient = jax.grad(lambda w_v: ov_norms(params._replace(w_v=w_v, w_o=w_o)).sum())(w_v)
    assert gradient[0, 0, 0] == 0.0
    assert gradient[0, 0, 1] != 0.0


@pytest.mark.parametrize(("dtype", "size"), [("float16", 30.0), ("float32", 1e12)])
def test_neither_overflows_with_large_weights(dtype, size):
    params = jax.tree.map(lambda w: w.astype(dtype), layer(2, size))
    wanted = np.array([np.linalg.norm(m) for m in products(params)[1]])
    np.testing.assert_allclose(np.asarray(ov_norms(params)) / wanted, 1, rtol=1e-4)
    scores = np.stack(composition(params, params))
    assert ((scores > 0) & (scores <= 1)).all()


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
        return total + bias, logit

    np.testing.assert_allclose(*run(params, ids), atol=1e-5)


def test_directions_of_a_large_stream_in_half_precision():
    stream, ones = jnp.full((1, 1, 2), 300.0, jnp.float16), jnp.ones((1, 1, 2), jnp.float16)
    found = logit_directions(stream, ones[0, 0], ones, 0.0, centered=False)
    np.testing.assert_allclose(found, [[[1 / 300, 1 / 300]]], rtol=1e-3)  # not 0: 300² overflows
