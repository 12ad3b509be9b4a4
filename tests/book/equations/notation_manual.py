"""The equations of the notation's manual, all run from the page."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.book.equations import executed, fed
from tests.book.equations.index_notation import slopes, whole

fed("index-order", whole, "X W_Q W_K d_k", "S")


@executed("index-transpose")
def transpose(rng):
    w = rng.normal(size=(3, 5))
    return {"W": w}, {"Z": w.T}


@executed("index-trace")
def trace(rng):
    w = rng.normal(size=(5, 5))
    return {"W": w}, {"s": np.trace(w)}


@executed("index-diagonal")
def diagonal(rng):
    w = rng.normal(size=(5, 5))
    return {"W": w}, {"z": np.diagonal(w)}


@executed("index-delta")
def delta(rng):
    # The page has one letter on both sides: x comes out as it went in.
    x = rng.normal(size=5)
    return {"x": x}, {"x": x}


@executed("index-gradient-softmax")
def gradient_softmax(rng):
    scores = jnp.asarray(rng.normal(size=(2, 3, 5)), jnp.float32)
    above, (slope,) = slopes(jax.nn.softmax, scores)
    return {"A": jax.nn.softmax(scores), "dL_dA": above}, {"dL_dS": slope}
