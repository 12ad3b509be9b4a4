"""The executed equations of the chapter on devices."""

import jax
import jax.numpy as jnp

from mha_book.costs import traced_matmul_flops
from tests.book.equations import executed


@executed("hw-intensity")
def intensity(rng):
    positions, heads, width = 7, 3, 5
    x = jax.ShapeDtypeStruct((heads, positions, width), jnp.float32)

    def scores(q, k):
        return q @ jnp.swapaxes(k, -1, -2)

    counted = traced_matmul_flops(lambda q, k, v: jax.nn.softmax(scores(q, k)) @ v, x, x, x)
    moved = 4 * 4 * x.size  # queries, keys, values and the output, in float32
    pairs = jax.eval_shape(scores, x, x).size
    given = {"T": positions, "N": heads, "H": width, "n_bytes": 4, "n_pass": 6}
    return given, {
        "I_blocks": counted / moved,
        "I_stored": counted / (moved + 6 * 4 * pairs),
    }


@executed("acc-reuse")
def reuse(rng):
    """The two products of a block of queries, over the keys and values that pass by."""
    rows, keys, width, size = 3, 7, 5, 2
    queries = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16)
    passing = [jax.ShapeDtypeStruct((keys, width), jnp.bfloat16)] * 2
    counted = traced_matmul_flops(lambda q, k, v: jax.nn.softmax(q @ k.T) @ v, queries, *passing)
    given = {"n_rows": rows, "S": keys, "H": width, "n_bytes": size}
    return given, {"I_tile": counted / (size * 2 * keys * width)}
