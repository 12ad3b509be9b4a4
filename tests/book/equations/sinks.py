"""The tested equation of the page on attention sinks."""

import jax.numpy as jnp
import numpy as np

from mha_book.attention.reference import scaled_dot_product_attention
from tests.book.equations import tested


@tested(
    "sink-denominator",
    latex=r"O^{hic} = \frac{\sum_{j \ge 1} \exp(S^{hij})\, V^{hjc}}"
    r"{\exp(S^{hi0}) + \sum_{j \ge 1} \exp(S^{hij})}",
    alterations=("term",),
)
def denominator(rng, altered):
    """A key whose value is 0 stands in the denominator alone."""
    heads, queries, keys, width = 2, 3, 5, 7
    query = rng.standard_normal((heads, queries, width))
    key, value = (rng.standard_normal((heads, keys, width)) for _ in range(2))
    value[:, 0] = 0
    scores = np.einsum("hia,hja->hij", query, key) / np.sqrt(width)
    above = np.einsum("hij,hjc->hic", np.exp(scores[..., 1:]), value[:, 1:])
    below = np.exp(scores[..., 1:]).sum(-1) + (not altered) * np.exp(scores[..., 0])
    found = scaled_dot_product_attention(*(jnp.asarray(x) for x in (query, key, value)))
    return found, above / below[..., None]
