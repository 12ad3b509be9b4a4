"""The executed equations of the page that has the layer on one side of paper."""

import jax
import jax.numpy as jnp

from mha_book import multi_head_attention
from mha_book.costs import traced_matmul_flops
from tests.book.equations import executed
from tests.book.equations.cost import D, H, K, N, T, kept, shapes
from tests.book.equations.variants import H as HEAD_DIM
from tests.book.equations.variants import draw
from tests.book.equations.variants import layer as layer_of


@executed("one-page-layer")
def layer(rng):
    w = draw(rng)
    return {**w, "d_k": HEAD_DIM}, {"Y": multi_head_attention(layer_of(w), w["X"])}


@executed("one-page-costs")
def costs(rng):
    params, x = shapes(c=H), jax.ShapeDtypeStruct((T, D), jnp.float32)
    flops = traced_matmul_flops(multi_head_attention, params, x)
    counted = {
        "P": sum(w.size for w in jax.tree.leaves(params)),
        "F": flops,
        "M_cache": 4 * sum(array.size for array in kept("cache", params)),
    }
    given = {"D": D, "N": N, "K": K, "H": H, "T": T, "S": T, "n_bytes": 4}
    return given, {name: float(count) for name, count in counted.items()}
