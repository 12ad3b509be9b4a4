"""The executed equations of the catalog of heads."""

import jax.numpy as jnp
import numpy as np

from mha_book import causal
from mha_book.specialization import measures
from mha_book.specialization.patterns import (
    distance,
    mean_score,
    visible_pairs,
)
from tests.book.equations import executed

N, T = 3, 7  # heads, positions


def seen():
    return visible_pairs(causal(), 1, T)


def weights(rng, visible=None):
    pairs = np.ones((1, T, T), bool) if visible is None else np.asarray(visible)
    raw = rng.uniform(0.1, 1, size=(1, N, T, T)) * pairs[:, None]
    return jnp.asarray(raw / raw.sum(-1, keepdims=True))


@executed("spec-measure")
def measure(rng):
    drawn, pattern = weights(rng, seen()), distance(seen())
    rows = pattern.counted[0].astype(float)
    given = {"A": drawn[0], "chi": rows, "s": pattern.score[0]}
    return given, {"mu": mean_score(drawn, pattern)}


@executed("spec-excess")
def above_chance(rng):
    total, rows, even = rng.uniform(2, 9, size=(1, N)), 11.0, 2.5
    sums = measures.MeasureSums(jnp.asarray(total), jnp.array(even), jnp.array(rows))
    given = {"mu": total[0] / rows, "mu_0": even / rows}
    return given, {"kappa": sums.above_chance[0]}
