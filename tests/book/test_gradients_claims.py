"""The evidence for the claims of the chapter on gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
    scaled_dot_product_attention,
)
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.gradient import multi_head_attention_vjp
from mha_book.multihead.layer import project_heads
from mha_book.notation import Equation, multi_head_layer
from mha_book.notation.system import layer_arrays
from tests.book.verdicts import decides

T, N, H, C, D, B = 3, 5, 2, 7, 11, 13


def relative(one, other):
    return float(jnp.abs(one - other).max() / jnp.abs(other).max())


def layer(dtype=jnp.float64, **options):
    params = init_multi_head(
        jax.random.key(1), D, N, head_dim=H, value_dim=C, dtype=dtype, **options
    )
    rng = np.random.default_rng(3)
    params = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape) / 2, dtype), params)
    x, above = (jnp.asarray(rng.normal(size=(B, T, D)), dtype) for _ in range(2))
    return params, x, above


def test_c05_query_weights():
    query = Equation(r"Q^{hia} = X^{ib} W_Q^{hba}")
    claimed = Equation(
        r"\frac{\partial L}{\partial W_Q^{hba}} = X^{ib} \frac{\partial L}{\partial Q^{hia}}"
    )
    deltas = Equation(
        r"\frac{\partial Q^{h'i'a'}}{\partial W_Q^{hba}} = \delta^{h'h} X^{i'b} \delta^{a'a}"
    )
    assert query.gradient("W_Q") == claimed
    assert query.jacobian("W_Q") == deltas
    with jax.enable_x64(True):
        params, x, above = layer()
        mixed = jax.vjp(lambda w: multi_head_attention(params._replace(w_q=w), x), params.w_q)[1]
        (wanted,) = mixed(above)

        def rest(q):  # what comes after the projection
            k, v = project_heads(x, params.w_k), project_heads(x, params.w_v)
            heads = scaled_dot_product_attention(q, k, v)
            return jnp.einsum("nhic,hcd->nid", heads, params.w_o)

        q = jnp.einsum("nib,bha->nhia", x, params.w_q)
        (d_query,) = jax.vjp(rest, q)[1](above)
        for head in range(N):
            rows = d_query[:, head].reshape(-1, H)
            assert relative(x.reshape(-1, D).T @ rows, wanted[:, head]) < 1e-12
        assert relative(claimed(X=x[0], dL_dQ=d_query[0]), jnp.moveaxis(wanted, 1, 0)) > 0.1
        each = [claimed(X=x[n], dL_dQ=d_query[n]) for n in range(B)]
        held = relative(sum(each), jnp.moveaxis(wanted, 1, 0)) < 1e-12
    decides("C05", "confirmed", held)


@pytest.mark.parametrize("case", ["plain", "gates", "dropout on heads", "dropout on output"])
def test_c06_output_weights(case):
    claimed = Equation(r"Y^{id} = O^{hic} W_O^{hcd}").gradient("W_O")
    wanted = r"\frac{\partial L}{\partial W_O^{hcd}} = O^{hic} \frac{\partial L}{\partial Y^{id}}"
    assert claimed == Equation(wanted)
    with jax.enable_x64(True):
        params, x, above = layer()
        x, above = x[0], above[0]
        options = {
            "plain": {},
            "gates": {"gates": jnp.linspace(0.5, 2.0, N)},
            "dropout on heads": {"dropout": Dropout(heads=0.4), "rng_key": jax.random.key(0)},
            "dropout on output": {"dropout": Dropout(output=0.4), "rng_key": jax.random.key(0)},
        }[case]

        def run(w_o):
            return multi_head_attention(params._replace(w_o=w_o), x, **options)

        (found,) = jax.vjp(run, params.w_o)[1](above)
        _, inside = multi_head_attention_with_intermediates(params, x)
        slope = claimed(O=inside.head_outputs, dL_dY=above)
        held = (relative(slope, found) < 1e-12) == (case == "plain")
        by_hand = multi_head_attention_vjp(params, x, **options)[1](above)
        assert relative(by_hand.params.w_o, found) < 1e-12
    decides("C06", "confirmed", held)


def test_c07_everything_else():
    with jax.enable_x64(True):
        params, x, above = layer(use_bias=True)
        x, above = x[0], above[0]

        def loss(params, x):
            return jnp.vdot(multi_head_attention(params, x), above)

        d_params, d_x = jax.grad(loss, argnums=(0, 1))(params, x)
        own = multi_head_attention_vjp(params, x)[1](above)
        wanted, by_hand = layer_arrays(d_params, d_x), layer_arrays(own.params, own.query)
        derived = multi_head_layer(use_bias=True).gradients(above, **layer_arrays(params, x))
        apart = {}
        for name, slope in wanted.items():  # the keys' bias changes no score: zero but for rounding
            size = jnp.abs(wanted["b_Q" if name == "b_K" else name]).max()
            gaps = [jnp.abs(found[name] - slope).max() / size for found in (by_hand, derived)]
            apart[name] = float(max(gaps))
        held = max(apart.values()) < 1e-12
        # Without the average of the row the softmax would be left out.
        _, inside = multi_head_attention_with_intermediates(params, x)
        d_weights = jnp.einsum("id,hcd,hjc->hij", above, params.w_o, inside.value)
        product = inside.weights * d_weights
        d_q = jnp.einsum("hij,hja->hia", product, inside.key) / H**0.5
        assert relative(jnp.einsum("ib,hia->bha", x, d_q), d_params.w_q) > 0.1
    decides("C07", "confirmed", held)
