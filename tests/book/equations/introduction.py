"""The equation of the introduction, held to the package."""

import jax.numpy as jnp
import numpy as np

from mha_book import scaled_dot_product_attention
from tests.book.equations import executed

T, C = 5, 3


def row_stochastic(rng):
    weights = rng.uniform(size=(T, T))
    return weights / weights.sum(axis=-1, keepdims=True)


@executed("intro-average")
def average(rng):
    weights, value = row_stochastic(rng), rng.normal(size=(T, C))
    # Scores log A give the weights A: the query is the identity, the key holds the scores.
    query, key = jnp.eye(T, dtype=jnp.float32), jnp.asarray(np.log(weights).T, jnp.float32)
    output = scaled_dot_product_attention(query, key, jnp.asarray(value, jnp.float32), scale=1.0)
    return {"A": weights, "V": value}, {"O": output}
