"""The tested equation of the page on what lies beyond the trained length."""

import jax.numpy as jnp

from experiments.positions import scheme_angles
from mha_book.models.smollm2 import CONFIG
from tests.book.equations import tested


@tested(
    "position-ntk",
    latex=r"\theta' = \theta\, \kappa^{H/(H-2)}",
    tolerance=1e-4,
)
def ntk(rng):
    """What the base is for: the slowest pair is slowed by κ, the fastest not at all."""
    width, factor = CONFIG.head_dim, 4.0
    angles = [scheme_angles(way, jnp.array([1]), CONFIG, factor)[0] for way in ("plain", "ntk")]
    want = CONFIG.rope_theta * factor ** (width / (width - 2))
    base = float(angles[1][1]) ** (-width / 2)  # of pair 1: base^(-2/H)
    slowed = [float(angles[0][p] / angles[1][p]) for p in (0, -1)]
    return [base / 1e5, *slowed], [want / 1e5, 1.0, factor]
