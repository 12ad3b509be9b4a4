"""The executed and the tested equations of the chapter on the rank of heads."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, init_multi_head, multi_head_attention
from mha_book.specialization import composition, similarity
from tests.book.equations import executed, fed, tested
from tests.book.equations.index_notation import whole

T, N, H, C, D = 3, 5, 2, 7, 11  # positions, heads, features of a key, a value, the model


@tested(
    "layer-swap",
    latex=r"""\frac{\partial L}{\partial W^0} = \frac{\partial L}{\partial W^1}
\quad \text{where } W^0 = W^1""",
)
def swap(rng):
    params = init_multi_head(jax.random.key(5), D, 2, head_dim=H)
    into = [jnp.repeat(w[:, :1], 2, axis=1) for w in params[:3]]
    params = MultiHeadParams(*into, jnp.repeat(params.w_o[:1], 2, axis=0))
    x, goal = (jnp.asarray(rng.normal(size=(T, D)), jnp.float32) for _ in range(2))
    slopes = jax.grad(lambda p: jnp.sum((multi_head_attention(p, x) - goal) ** 2))(params)
    by_head = [jnp.moveaxis(g, 1, 0) for g in slopes[:3]] + [slopes.w_o]
    return tuple(np.concatenate([np.ravel(g[h]) for g in by_head]) for h in range(2))


fed("layer-bilinear", whole, "X W_Q W_K H", "W_QK S")


@executed("layer-qr")
def qr(rng):
    w_q, w_k = rng.normal(size=(2, N, D, H))
    (e_q, u_q), (e_k, u_k) = np.linalg.qr(w_q), np.linalg.qr(w_k)
    return {"W_Q": w_q, "W_K": w_k, "E_Q": e_q, "U_Q": u_q, "E_K": e_k, "U_K": u_k}, {}


fed("spec-mixing", whole, "O W_O", "Y")


@executed("spec-row-norms")
def row_norms(rng):
    w_v, w_o = rng.normal(size=(N, D, C)), rng.normal(size=(N, C, D))
    params = MultiHeadParams(*(jnp.asarray(np.moveaxis(w_v, 0, 1)),) * 3, jnp.asarray(w_o))
    whole = np.square(composition.ov_norms(params))
    products = w_v @ w_o
    rows = np.square(products).sum(1)
    np.testing.assert_allclose(rows.sum(1), whole, rtol=1e-5)
    return {"W_V": w_v, "W_O": w_o}, {"Omega": products, "nu": rows, "tau": rows / rows.sum(0)}


@tested(
    "spec-divergence",
    latex=r"""\mathrm{JSD}^{hh'} = \frac{1}{n \log 2} \sum_i
\left( \eta_{\mathrm{mix}}^{hh'i} - \tfrac{1}{2} \eta^{hi} - \tfrac{1}{2} \eta^{h'i} \right)""",
)
def divergence(rng):
    raw = rng.uniform(0.1, 1, size=(1, N, T, T))
    drawn = jnp.asarray(raw / raw.sum(-1, keepdims=True), jnp.float32)
    sums, rows = similarity.jensen_shannon_sums(drawn, jnp.ones((1, T, T), bool))
    a = np.asarray(drawn[0], np.float64)
    middle = (a[:, None] + a[None, :]) / 2
    entropy, between = -(a * np.log(a)).sum(-1), -(middle * np.log(middle)).sum(-1)
    found = (between - (entropy[:, None] + entropy[None, :]) / 2).sum(-1) / (
        float(rows) * np.log(2)
    )
    return sums / rows, found
