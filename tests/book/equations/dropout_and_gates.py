"""The equations of the chapter on dropout and gates, all run from the page."""

import itertools

import numpy as np

from tests.book.equations import executed
from tests.book.equations.gradients import N, draw, sized, slopes


@executed("grad-gates")
def gates(rng):
    heads = draw(rng, *sized("hic"))
    above, (found,) = slopes(rng, lambda g: heads * g[:, None, None], draw(rng, N))
    return {"O": heads, "dL_dO_tilde": above}, {"dL_dg": found}


@executed("grad-dropout")
def dropout(rng):
    weights, factors = draw(rng, *sized("hij")), draw(rng, *sized("hij"))
    above, (found,) = slopes(rng, lambda a: a * factors, weights)
    arrays = {"xi": factors, "A": weights, "dL_dA_tilde": above}
    return arrays, {"A_tilde": factors * weights, "dL_dA": found}


@executed("grad-noise")
def noise(rng):
    """The variances by definition: over all draws of the factors, each with its probability."""
    heads, queries, keys, width, model, p = 2, 3, 5, 4, 7, 0.3
    weights, value = rng.random((heads, queries, keys)), rng.normal(size=(heads, keys, width))
    w_o, outputs = rng.normal(size=(heads, width, model)), weights @ value
    output = np.einsum("hic,hcd->id", outputs, w_o)

    def variance(number, result):
        total, squares = 0.0, 0.0
        for kept in itertools.product((0, 1), repeat=number):
            share = np.prod([1 - p if one else p for one in kept])
            drawn = result(np.array(kept) / (1 - p))
            total, squares = total + share * drawn, squares + share * drawn**2
        return squares - total**2

    def on_weights(factors):
        drawn = weights * factors.reshape(heads, 1, keys)
        return np.einsum("hij,hjc,hcd->id", drawn, value, w_o)

    def on_heads(factors):
        return np.einsum("hic,hcd->id", outputs * factors.reshape(heads, 1, width), w_o)

    found = {
        "U_A": variance(heads * keys, on_weights),
        "U_O": variance(heads * width, on_heads),
        "U_Y": variance(1, lambda factor: output * factor),
    }
    arrays = {"p_drop": p, "A": weights, "V": value, "O": outputs, "W_O": w_o, "Y": output}
    return arrays, found
