"""The executed and the tested equations of the chapter on what comes after pruning."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.pruning.hard_concrete import BETA, GAMMA, ZETA, HardConcrete
from tests.book.equations import executed, tested


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
