"""The executed equations of the chapter on programs for accelerators."""

import jax
import jax.numpy as jnp

from mha_book.costs import traced_matmul_flops
from tests.book.equations import executed


@executed("acc-reuse")
def reuse(rng):
    """The two products of a block of queries, over the keys and values that pass by."""
    rows, keys, width, size = 3, 7, 5, 2
    queries = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)
    passing = [jax.ShapeDtypeStruct((keys, width), jnp.bfloat16)] * 2

    def block(q, k, v):
        return jax.nn.softmax(q @ k.T) @ v

    counted = traced_matmul_flops(block, queries, *passing)
    given = {"n_rows": rows, "S": keys, "H": width, "n_bytes": size}
    return given, {"I_tile": counted / (size * sum(x.size for x in jax.tree.leaves(passing)))}
