"""The equations of the chapter on gradients, all run from the page, against ``jax.vjp``."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import attend_with_lse
from mha_book.rope import rotary_angles, rotate
from tests.book.equations import executed, fed

T, S, N, K, H, C, D = 3, 13, 6, 2, 5, 7, 11  # queries, keys, heads, key heads, three widths


def draw(rng, *shape):
    return jnp.asarray(rng.normal(size=shape))


def slopes(rng, function, *operands):
    """A random cotangent of the result, and those of the operands that it gives, by JAX."""
    result, pull = jax.vjp(function, *operands)
    above = draw(rng, *result.shape)
    return above, pull(above)


def backward(rng, keys=S):
    """All arrays of a layer, and the gradient of a loss by each of them, by JAX.

    It attends to ``keys`` other positions, or to its own where they are None; ``r`` is the average
    that the softmax's gradient subtracts.
    """
    shapes = {"X": (T, D), "W_Q": (N, D, H), "W_K": (N, D, H), "W_V": (N, D, C), "W_O": (N, C, D)}
    shapes |= {"b_Q": (N, 1, H), "b_K": (N, 1, H), "b_O": (1, D)}
    given = {name: draw(rng, *shape) for name, shape in shapes.items()}
    others, above = None if keys is None else draw(rng, keys, D), draw(rng, T, D)

    def run(given, added):
        """The layer, with a number added to each entry of what it makes on the way."""
        made, x = {}, given["X"]

        def make(name, array):
            made[name] = array + added.get(name, 0.0)
            return made[name]

        z = x if others is None else others
        sources = {"Q": x, "K": z, "V": z}
        q, k, v = (
            make(n, jnp.einsum("ib,hba->hia", sources[n], given[f"W_{n}"]) + given.get(f"b_{n}", 0))
            for n in "QKV"
        )
        scores = make("S", jnp.einsum("hia,hja->hij", q, k) / H**0.5)
        heads = make("O", make("A", jax.nn.softmax(scores, axis=-1)) @ v)
        y = make("Y", jnp.einsum("hic,hcd->id", heads, given["W_O"]) + given["b_O"])
        return jnp.vdot(y, above), made

    made = run(given, {})[1]
    still = jax.tree.map(jnp.zeros_like, made)
    slopes, of_made = jax.jit(jax.grad(lambda g, a: run(g, a)[0], argnums=(0, 1)))(given, still)
    slopes = {f"dL_d{n}": jnp.squeeze(g, -2) if n[0] == "b" else g for n, g in slopes.items()}
    slopes |= {f"dL_d{name}": slope for name, slope in of_made.items()}
    row = {"r": (made["O"] * slopes["dL_dO"]).sum(axis=-1), "d_k": H}
    return given | made | slopes | row


def own(rng):
    return backward(rng, None)


fed("grad-w-q", backward, "X dL_dQ", "dL_dW_Q")
fed("grad-values", backward, "A dL_dO", "dL_dV")
fed("grad-weights", backward, "V dL_dO", "dL_dA")
fed("grad-queries", backward, "K dL_dS d_k", "dL_dQ")
fed("grad-scores", backward, "A dL_dA r", "dL_dS")
fed("grad-row-products", backward, "A V O dL_dA dL_dO", "r")
fed("grad-row-sum", backward, "A r dL_dS")
fed("grad-biases", backward, "dL_dQ dL_dY", "dL_db_Q dL_db_O")
fed("grad-key-bias", backward, "Q dL_dS d_k", "dL_db_K")
fed(
    "grad-rest",
    own,
    "X O Q W_Q W_K W_V W_O dL_dY dL_dS dL_dQ dL_dV d_k",
    "dL_dW_O dL_dO dL_dK dL_dW_K dL_dW_V dL_dX",
)


@executed("grad-grouped")
def grouped(rng):
    query, key = draw(rng, K, N // K, T, H), draw(rng, K, S, H)
    above, (found,) = slopes(rng, lambda k: jnp.einsum("kgia,kja->kgij", query, k) / H**0.5, key)
    return {"Q": query, "dL_dS": above, "d_k": H}, {"dL_dK": found}


@executed("grad-jacobian")
def jacobian(rng):
    x, w = draw(rng, 2, 7), draw(rng, 3, 7, 5)
    function = jax.jacobian(lambda w: jnp.einsum("ib,hba->hia", x, w))
    return {"X": x, "dims": {"h": 3, "a": 5, "h'": 3, "a'": 5}}, {"dQ_dW_Q": function(w)}


@executed("grad-chain")
def chain(rng):
    x, w = draw(rng, 2, 7), draw(rng, 3, 7, 5)

    def project(w):
        return jnp.einsum("ib,hba->hia", x, w)

    above, (found,) = slopes(rng, project, w)
    return {"dL_dQ": above, "dQ_dW_Q": jax.jacobian(project)(w)}, {"dL_dW_Q": found}


@executed("grad-softmax-jacobian")
def softmax_jacobian(rng):
    scores = draw(rng, 5)
    found = jax.jacobian(jax.nn.softmax)(scores)
    return {"A": jax.nn.softmax(scores)}, {"dA_dS": found}


@executed("grad-softmax")
def softmax(rng):
    scores = draw(rng, 5)
    above, (found,) = slopes(rng, jax.nn.softmax, scores)
    return {"A": jax.nn.softmax(scores), "dL_dA": above}, {"dL_dS": found}


@executed("grad-recompute")
def recompute(rng):
    query, key, value = draw(rng, N, T, H), draw(rng, N, S, H), draw(rng, N, S, C)
    _, lse = attend_with_lse(query, key, value, implementation="reference", layout="NTH")
    found = jnp.einsum("hia,hja->hij", query, key) / H**0.5
    weights = jax.nn.softmax(found, axis=-1)
    return {"S": found}, {"lambda_": lse, "A": weights}


@executed("grad-rotation")
def rotation(rng):
    angles = rotary_angles(jnp.arange(T), 4)
    # Row a' is where R takes the a'-th unit vector: the transpose of R^{iaa'}.
    matrices = jnp.stack([rotate(jnp.eye(4)[:, None], one[None])[:, 0].T for one in angles])
    query = draw(rng, N, T, 4)
    above, (found,) = slopes(rng, lambda q: rotate(q, angles), query)
    return {"R": matrices, "dL_dQ_tilde": above}, {"dL_dQ": found}


# Dropout and gates.


@executed("grad-dropout")
def dropout(rng):
    weights, factors = draw(rng, N, T, S), draw(rng, N, T, S)
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
