"""Dropout: its factors, its three places in the layer, its keys, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.masks import padding
from mha_book.multihead.dropout import Dropout, draw_factors, dropout_factors
from mha_book.multihead.layer import multi_head_attention, multi_head_attention_with_intermediates
from mha_book.multihead.parameters import init_multi_head
from tests import oracles
from tests.oracles import draw

B, T, D, N, K, H, C = 2, 5, 12, 6, 3, 4, 11


def layer(**options):
    sizes = {"num_kv_heads": K, "head_dim": H, "value_dim": C, "use_bias": True}
    return init_multi_head(jax.random.key(1), D, N, **{**sizes, **options})


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.25, 0.9])
def test_a_factor_is_zero_or_the_inverse_of_what_is_kept(rate):
    factors = np.asarray(dropout_factors(jax.random.key(0), rate, (400, 500)))
    kept = factors != 0.0
    np.testing.assert_allclose(factors[kept], 1.0 / (1.0 - rate), rtol=1e-6)
    deviation = np.sqrt(rate * (1 - rate) / factors.size)
    assert abs(kept.mean() - (1 - rate)) <= 5 * deviation


def by_hand(params, x, factors, gates):
    """The layer with its dropout, in float64."""
    p = {name: np.asarray(value, np.float64) for name, value in params._asdict().items()}
    x = np.asarray(x, np.float64)[:, None]
    heads = {n: x @ np.moveaxis(p[f"w_{n}"], 1, 0) + p[f"b_{n}"][:, None] for n in "qkv"}
    weights = oracles.attention(*heads.values(), np.tri(T, dtype=bool))[2]
    weights = weights if factors.weights is None else weights * np.asarray(factors.weights)
    outputs = weights @ heads["v"].repeat(N // K, axis=1)
    outputs = outputs if factors.heads is None else outputs * np.asarray(factors.heads)
    output = np.einsum("h,bhtc,hcd->btd", gates, outputs, p["w_o"])
    output += p["b_o"]
    return output if factors.output is None else output * np.asarray(factors.output)


@pytest.mark.parametrize("places", [(0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.3), (0.3,) * 3])
def test_the_three_places_in_the_layer(places):
    params, x, key = layer(), draw(B, T, D), jax.random.key(7)
    gates = jnp.linspace(0.5, 2.0, N)
    factors = draw_factors(Dropout(*places), key, (B, N, T, T), C, D)
    assert [f is not None for f in factors] == [rate > 0 for rate in places]
    given = {"dropout": Dropout(*places), "rng_key": key, "gates": gates, "is_causal": True}
    got = jax.jit(lambda p, x: multi_head_attention(p, x, **given))(params, x)
    np.testing.assert_allclose(got, by_hand(params, x, factors, gates), rtol=2e-4, atol=2e-5)


def test_intermediates_show_the_weights_before_dropout():
    params, x = layer(), draw(B, T, D)
    dropped, inside = multi_head_attention_with_intermediates(
        params, x, dropout=Dropout(0.5), rng_key=jax.random.key(3)
    )
    plain = multi_head_attention_with_intermediates(params, x)
    np.testing.assert_array_equal(inside.weights, plain[1].weights)
    np.testing.assert_allclose(inside.weights.sum(-1), 1.0, rtol=1e-6)
    again = multi_head_attention(params, x, dropout=Dropout(0.5), rng_key=jax.random.key(3))
    np.testing.assert_array_equal(dropped, again)
    assert not np.allclose(dropped, plain[0])


def test_empty_rows_and_poisoned_padding_stay_zero():
    params, x = layer(use_bias=False), draw(B, T, D).at[1, 3:].set(jnp.nan)
    mask = padding(jnp.array([T, 3]), jnp.array([T, 3]))

    def total(x):
        options = {"dropout": Dropout(weights=0.3), "rng_key": jax.random.key(0)}
        return multi_head_attention(params, x, mask=mask, **options)[1, 3:].sum()

    value, gradient = jax.value_and_grad(total)(x)
    assert float(value) == 0.0
    assert bool(jnp.all(gradient == 0.0))
