"""Evidence for the claims of papers in the chapter on"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.attention.dispatch import attend
from mha_book.models import smollm2
from mha_book.multihead import MultiHeadParams, multi_head_attention
from mha_book.multihead.differential import differential_attention
from mha_book.multihead.latent import absorbed_attention, as_latent, compress, expanded_attention
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.rope import rotary_angles
from tests.book.test_variants_chapter import table
from tests.book.verdicts import decides

D, N, K, H, C, T = 11, 6, 3, 4, 5, 7


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def layer(kv_heads):
    shapes = ((D, N, H), (D, kv_heads, H), (D, kv_heads, C), (N, C, D))
    return MultiHeadParams(*(draw(n, *shape) for n, shape in enumerate(shapes)))


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def trained():
    """Layer 17 of SmolLM2 in double precision, an input, and the angles of its positions."""
    model = smollm2.load_smollm2()
    with jax.enable_x64(True):
        weights = model.params.layers[17].attention
        params = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), weights)
        angles = rotary_angles(jnp.arange(T), 64, theta=model.config.rope_theta)
        yield params, draw(9, T, 576), angles


@pytest.mark.needs_models
def test_p41_a_grouped_layer_is_latent(trained):
    params, x, angles = trained
    wanted = multi_head_attention(params, x, angles=angles, is_causal=True)
    latent, beside = as_latent(params), jnp.tile(angles, (1, 3))
    stored = compress(latent, x, beside)
    assert sum(part.shape[-1] for part in stored) == 2 * 3 * 64
    for form in (expanded_attention, absorbed_attention):
        same(form(latent, x, stored, beside, is_causal=True), wanted)
    decides("P41", "confirmed")


@pytest.mark.needs_models
def test_p42_differential_is_grouped_and_a_subtraction(trained):
    params, x, angles = trained
    second = jnp.roll(params.w_q, 1, axis=1)
    twice = params._replace(
        w_q=jnp.stack((params.w_q, second), 2).reshape(576, 18, 64),
        w_o=jnp.stack((params.w_o, -0.3 * params.w_o), 1).reshape(18, 64, 576),
    )
    found = differential_attention(params, second, 0.3, x, angles=angles, is_causal=True)
    same(found, multi_head_attention(twice, x, angles=angles, is_causal=True))
    counts = table()
    assert counts["differential"][1] == counts["multi-head"][1]
    assert counts["differential"][2] > 1.4 * counts["multi-head"][2]
    decides("P42", "confirmed")


def test_p44_grouped_layers_are_tensor_products():
    with jax.enable_x64(True):
        x = draw(9, T, D)
        for kv_heads in (N, K, 1):
            p = layer(kv_heads)
            q, k, v = project_qkv(p, x)
            # Factors that no position makes: 1 where a query head reads a key head.
            reads = np.repeat(np.eye(kv_heads), N // kv_heads, axis=0)
            products = (jnp.einsum("hn,nja->hja", reads, y) for y in (k, v))
            heads = attend(q, *products, layout="NTH")
            same(project_output(p, heads), multi_head_attention(p, x))
    decides("P44", "confirmed")


def test_p46_linear_knocking_heads_are_other_weights():
    with jax.enable_x64(True):
        x, p, t = draw(9, T, D), layer(N), draw(8, C, C)
        q, k, v = project_qkv(p, x)
        heads = attend(q, k, v @ t, layout="NTH")
        merged = multi_head_attention(p._replace(w_v=p.w_v @ t), x)
        same(merged, project_output(p, heads))
        # No feature of one head reaches another: without head 0 the others' outputs stay.
        other = p._replace(w_v=p.w_v.at[:, 0].set(0), w_o=p.w_o.at[0].set(0))
        left = multi_head_attention(other._replace(w_v=other.w_v @ t), x)
        same(left, np.einsum("hic,hcd->id", heads[1:], p.w_o[1:]))
    decides(
        "P46",
        "corrected",
        np.allclose(merged, np.einsum("hic,hcd->id", heads, p.w_o)),
        np.abs(left - np.einsum("hic,hcd->id", heads[1:], p.w_o[1:])).max() > 1e-6,
    )


def test_p48_tied_heads_keep_half():
    counts = table()
    assert counts["tied"][1] / counts["grouped"][1] == (1 + 1 / 16) / 2
    decides(
        "P48",
        "holds if",
        counts["tied"][1] / counts["grouped"][1] < 0.55,
        ((counts["tied"][1] - 32) / 8 + 32) / (counts["grouped"][1] / 8) < 0.55,
    )


def test_p49_talking_heads_cost_half_as_much_again():
    counts = table()
    assert 1.4 < counts["talking heads"][2] / counts["multi-head"][2] < 1.5
    assert counts["talking heads"][0] - counts["multi-head"][0] < 0.1
    decides("P49", "holds if", N < 2)
