"""The executed and the tested equations of the chapter on heads in use."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, init_multi_head, multi_head_attention
from tests.book.equations import executed, tested
from tests.book.equations.multi_head_layer import layer, package_scores

T, N, H, D = 3, 5, 2, 11  # positions, heads, features of a key, of the model


@tested(
    "layer-swap",
    latex=r"""\frac{\partial L}{\partial W^0} = \frac{\partial L}{\partial W^1}
\quad \text{where } W^0 = W^1""",
    alterations=("start",),
)
def swap(rng, altered):
    params = init_multi_head(jax.random.key(5), D, 2, head_dim=H)
    if not altered:
        into = [jnp.repeat(w[:, :1], 2, axis=1) for w in params[:3]]
        params = MultiHeadParams(*into, jnp.repeat(params.w_o[:1], 2, axis=0))
    x, goal = (jnp.asarray(rng.normal(size=(T, D)), jnp.float32) for _ in range(2))
    slopes = jax.grad(lambda p: jnp.sum((multi_head_attention(p, x) - goal) ** 2))(params)
    by_head = [jnp.moveaxis(g, 1, 0) for g in slopes[:3]] + [slopes.w_o]
    return tuple(np.concatenate([np.ravel(g[h]) for g in by_head]) for h in range(2))


@executed("layer-bilinear")
def bilinear(rng):
    params, x, _, inside = layer(rng)
    w_q, w_k = (np.swapaxes(w, 0, 1) for w in params[:2])
    return {"X": x, "W_Q": w_q, "W_K": w_k, "d_k": H}, {"S": package_scores(inside)}


@executed("layer-qr")
def qr(rng):
    w_q, w_k = rng.normal(size=(2, N, D, H))
    (e_q, u_q), (e_k, u_k) = np.linalg.qr(w_q), np.linalg.qr(w_k)
    return {"W_Q": w_q, "W_K": w_k, "E_Q": e_q, "U_Q": u_q, "E_K": e_k, "U_K": u_k}, {}
