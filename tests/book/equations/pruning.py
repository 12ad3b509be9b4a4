"""The executed and the tested equations of the chapter on removing heads."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, multi_head_attention, multi_head_attention_with_intermediates
from mha_book.models.minilm import mean_pool
from mha_book.pruning.hard_concrete import BETA, GAMMA, ZETA, HardConcrete
from mha_book.pruning.importance import normalize_layers
from mha_book.specialization.composition import ov_norms
from tests.book.equations import executed, tested
from tests.book.equations.gradients import draw

T, N, H, C, D, L = 7, 5, 3, 2, 11, 13  # positions, heads, widths, layers


def layer(rng):
    params = MultiHeadParams(*(draw(rng, *s) for s in ((D, N, H), (D, N, H), (D, N, C), (N, C, D))))
    return params, draw(rng, T, D), draw(rng, N)


@executed("prune-slope")
def slope(rng):
    params, x, g = layer(rng)
    inside = multi_head_attention_with_intermediates(params, x)[1]
    y, pull = jax.vjp(lambda g: multi_head_attention(params, x, gates=g), g)
    above = draw(rng, *y.shape)
    given = {"O": inside.head_outputs, "W_O": params.w_o, "dL_dY": above}
    return given, {"dL_dg": pull(above)[0]}


@tested(
    "prune-expansion",
    latex=r"L(g - \mathrm{cut}) - L(g) \approx"
    r" -\frac{\partial L}{\partial g^{h}}\, \mathrm{cut}^{h}"
    r" + \frac{1}{2} \frac{\partial^2 L}{\partial g^{h} \partial g^{h'}}\,"
    r" \mathrm{cut}^{h}\, \mathrm{cut}^{h'}",
)
def expansion(rng):
    # One position, a squared error: quadratic in the gates, so that the second order is the last.
    written, target = draw(rng, N, D), draw(rng, D)

    def loss(g):
        return jnp.sum((g @ written - target) ** 2) / 2

    g, closed = draw(rng, N), jnp.array([1.0, 0.0, 1.0, 1.0, 0.0])
    moved = closed * g  # how far each gate is moved
    slope, curved = jax.grad(loss)(g), jax.hessian(loss)(g)
    return loss(g - moved) - loss(g), -slope @ moved + moved @ curved @ moved / 2


@executed("prune-layers")
def layers(rng):
    scores = draw(rng, L, N)
    return {"imp": scores}, {"imp_div": normalize_layers(scores)}


@executed("prune-norm")
def norm(rng):
    params, _, _ = layer(rng)
    heads_first = jnp.swapaxes(params.w_v, 0, 1)
    return {"W_V": heads_first, "W_O": params.w_o}, {"imp": ov_norms(params)}


@tested(
    "prune-distance",
    latex=r"1 - e^{d} f^{d} = \frac{1}{2} \sum_{d} \left( e^{d} - f^{d} \right)^2",
    tolerance=1e-5,
)
def distance(rng):
    e, f = (np.asarray(x) for x in mean_pool(draw(rng, 2, T, D), jnp.array([T, T])))
    return 1 - e @ f, 0.5 * ((e - f) ** 2).sum()


# After pruning.


def gates_of(u, log_alpha):
    """The gates of {eq}`prune-hard-concrete` for given draws."""
    s = 1 / (1 + np.exp(-(np.log(u) - np.log(1 - u) + log_alpha) / BETA))
    return np.clip(s * (ZETA - GAMMA) + GAMMA, 0, 1)


@tested(
    "prune-hard-concrete",
    latex=r"""
\begin{aligned}
s &= \operatorname{sigmoid}\!\left(\frac{\log u - \log(1 - u) + \phi}{\beta}\right), \\
g &= \min\!\left(1, \max\!\left(0,\; s\,(\zeta - \gamma) + \gamma\right)\right)
\end{aligned}
""",
    tolerance=1e-5,
)
def hard_concrete(rng):
    log_alpha = rng.normal(size=(5, 7)).astype(np.float32)
    key = jax.random.key(3)
    noise = np.asarray(jax.random.logistic(key, log_alpha.shape), np.float64)
    u = 1 / (1 + np.exp(-noise))
    drawn = HardConcrete(jnp.asarray(log_alpha)).sample(key)
    return drawn, gates_of(u, log_alpha)


@tested(
    "prune-open",
    latex=r"\Pr(g \ne 0) = \operatorname{sigmoid}\!"
    r"\left(\phi - \beta \log\frac{-\gamma}{\zeta}\right)",
    tolerance=1e-4,
)
def open_gates(rng):
    log_alpha = rng.normal(size=3).astype(np.float32)
    u = (np.arange(100_000) + 0.5) / 100_000  # every draw equally often
    shares = np.array([(gates_of(u, x) > 0).mean() for x in log_alpha])
    gates = HardConcrete(jnp.asarray(log_alpha))
    return gates.open_probability(), shares


@executed("prune-amdahl")
def amdahl(rng):
    attention, rest, smaller = (float(x) for x in rng.uniform(1, 2, 3))
    whole = attention + rest
    given = {"f_att": attention / whole, "nu_att": smaller / attention}
    return given, {"nu_model": (smaller + rest) / whole}
