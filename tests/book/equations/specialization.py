"""The executed equations of the catalog of heads."""

import jax.numpy as jnp

from mha_book.specialization import measures
from tests.book.equations import executed

N = 3  # heads


@executed("spec-excess")
def above_chance(rng):
    total, rows, even = rng.uniform(2, 9, size=(1, N)), 11.0, 2.5
    sums = measures.MeasureSums(jnp.asarray(total), jnp.array(even), jnp.array(rows))
    given = {"mu": total[0] / rows, "mu_0": even / rows}
    return given, {"kappa": sums.above_chance[0]}
