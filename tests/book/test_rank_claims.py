"""The evidence for the claims of the chapter on the rank of heads and their sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    MultiHeadParams,
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
)
from mha_book.multihead.grouped import repeat_kv_heads
from tests.book.verdicts import decides


def singular_values(params):
    """Of W_Q W_K^T and of W_V W_O, head by head, by QR."""
    group = params.w_q.shape[1] // params.w_k.shape[1]
    found = []
    for h in range(params.w_q.shape[1]):
        blocks = (params.w_q[:, h], params.w_k[:, h // group], params.w_v[:, h // group])
        blocks = (*blocks, params.w_o[h].T)
        q, k, v, o = (np.linalg.qr(np.asarray(w, np.float64), mode="r") for w in blocks)
        found.append([np.linalg.svd(m, compute_uv=False) for m in (q @ k.T, v @ o.T)])
    return np.array(found)  # (N, 2, H)


@pytest.mark.slow
@pytest.mark.needs_models
def test_rank_of_every_head(attentions):
    """342 heads of full rank H, no more, and used less evenly than independent weights are."""
    rng = np.random.default_rng(5)
    count = 0
    for name, d, h in (("SmolLM2", 576, 64), ("MiniLM", 384, 32)):
        s = np.concatenate([singular_values(p) for p in attentions[name]])
        assert (s[..., -1] > 1e-4 * s[..., 0]).all()
        rank = (s**2).sum(axis=-1) ** 2 / (s**4).sum(axis=-1)
        control = np.linalg.svd(
            np.linalg.qr(rng.normal(size=(d, h)), mode="r")
            @ np.linalg.qr(rng.normal(size=(d, h)), mode="r").T,
            compute_uv=False,
        )
        chance = (control**2).sum() ** 2 / (control**4).sum()
        assert (np.median(rank, axis=0) < 0.95 * chance).all()
        count += len(s)
    assert count == 342
    # What lies outside the subspace is not seen by the queries of the head.
    w = np.asarray(attentions["MiniLM"][0].w_q[:, 0], np.float64)
    form = w @ np.asarray(attentions["MiniLM"][0].w_k[:, 0], np.float64).T
    assert np.linalg.matrix_rank(form) == 32
    basis = np.linalg.qr(w)[0]
    x = rng.normal(size=(3, 384))
    assert np.abs((x - x @ basis @ basis.T) @ w).max() < 1e-10
    decides("C08", "confirmed", np.linalg.matrix_rank(form) <= 32)


def twins(params, output=True):
    into = [jnp.repeat(w[:, :1], 2, axis=1) for w in params[:3]]
    w_o = jnp.repeat(params.w_o[:1], 2, axis=0) if output else params.w_o
    return MultiHeadParams(*into, w_o)


def test_identical_heads_and_the_sum():
    """Equal heads stay equal; heads are trained together; their parts add up exactly."""
    x, goal = jax.random.normal(jax.random.key(11), (2, 6, 5, 8))

    def loss(p):
        return jnp.mean((multi_head_attention(p, x) - goal) ** 2)

    @jax.jit
    def train(p):
        def step(_, q):
            return jax.tree.map(lambda w, g: w - 0.5 * g, q, jax.grad(loss)(q))

        return jax.lax.fori_loop(0, 100, step, p)

    def gap(p):
        """How far the projections of the two heads are apart, what they write left aside."""
        return max(float(jnp.abs(w[:, 0] - w[:, 1]).max()) for w in p[:3])

    start = init_multi_head(jax.random.key(12), 8, 2)
    end = train(twins(start))
    assert gap(end) < 1e-4
    assert np.abs(end.w_o[0] - end.w_o[1]).max() < 1e-4
    assert loss(end) < loss(twins(start))
    assert gap(train(twins(start, output=False))) > 0.01
    without = start._replace(w_o=start.w_o.at[1].set(0.0))
    slopes = [jax.grad(loss)(p).w_o[0] for p in (start, without)]
    assert np.abs(slopes[0] - slopes[1]).max() > 1e-3
    y, inside = multi_head_attention_with_intermediates(start, x)
    parts = jnp.einsum("...hic,hcd->...hid", inside.head_outputs, start.w_o)
    np.testing.assert_allclose(y, parts.sum(axis=1), atol=1e-5)
    decides("C14", "corrected", np.allclose(y, parts.sum(axis=1), atol=1e-5))


def sizes(attention):
    attention = repeat_kv_heads(attention)
    gram = jnp.einsum("bhc,bhe->hce", attention.w_v, attention.w_v)
    return jnp.einsum("hcd,hce,hed->hd", attention.w_o, gram, attention.w_o)


def left_over(nu):
    """The spread of log nu beside the mean of each head and of each feature."""
    x = np.log(nu)
    rest = x - x.mean(1, keepdims=True) - x.mean(0, keepdims=True) + x.mean()
    return np.sqrt(np.mean(rest**2))


@pytest.mark.needs_models
def test_c27_some_features_have_a_favorite_head_beyond_chance(attentions):
    """Few features give a head more than half; a random W_O with the same sizes gives none."""
    draw, run = np.random.default_rng(1), jax.jit(sizes)
    expected = {"SmolLM2": (20, 400, 17280), "MiniLM": (1, 40, 2304)}
    for name, layers in attentions.items():
        favored, typical = 0, []
        for attention in layers:
            nu = np.asarray(run(attention), np.float64)
            noise = draw.normal(size=attention.w_o.shape).astype(np.float32)
            control = np.asarray(run(attention._replace(w_o=noise)), np.float64)
            assert left_over(nu) > left_over(
                control
            )  # what scaling a row or column leaves as it is
            for _ in range(30):
                control *= (nu.sum(1) / control.sum(1))[:, None]
                control *= nu.sum(0) / control.sum(0)
            np.testing.assert_allclose(control.sum(1), nu.sum(1), rtol=1e-3)
            top, chance = ((x / x.sum(0)).max(0) for x in (nu, control))
            assert (chance > 0.5).sum() <= 1
            favored += (top > 0.5).sum()
            typical.append(top.mean() - chance.mean())
        least, most, features = expected[name]
        assert least <= favored <= most < features / 20
        assert abs(np.median(typical)) < 0.03  # in the typical feature nearly as by chance
    decides("C27", "holds if")
