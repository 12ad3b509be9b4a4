"""The executed equation of the page on attention sinks."""

import jax.numpy as jnp

from mha_book.attention.reference import scaled_dot_product_attention
from tests.book.equations import executed


@executed("sink-denominator")
def denominator(rng):
    """A first key whose value is 0 stands in the denominator alone."""
    heads, queries, keys, width, features = 2, 3, 5, 7, 11
    query = jnp.asarray(rng.normal(size=(heads, queries, width)))
    key = jnp.asarray(rng.normal(size=(heads, 1 + keys, width)))
    value = jnp.asarray(rng.normal(size=(heads, 1 + keys, features))).at[:, 0].set(0)
    scores = jnp.einsum("hia,hja->hij", query, key) / width**0.5
    arrays = {"S": scores[..., 1:], "S_0": scores[..., 0], "V": value[:, 1:]}
    return arrays, {"O": scaled_dot_product_attention(query, key, value)}
