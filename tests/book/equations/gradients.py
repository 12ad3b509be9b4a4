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


def product(label, einsum, shapes, wanted, scale=1.0):
    """Register the gradient of one factor of ``result = scale * left * right``.

    Args:
        label: the equation's.
        einsum: of the product.
        shapes: names of the result and both factors, each with its shape; the result's is None.
        wanted: which factor the equation is about.
        scale: of the product.
    """
    result, *factors = shapes

    @executed(label)
    def feed(rng):
        operands = [draw(rng, *shapes[name]) for name in factors]
        above, found = slopes(rng, lambda a, b: scale * jnp.einsum(einsum, a, b), *operands)
        arrays = dict(zip(factors, operands, strict=True)) | {f"dL_d{result}": above}
        del arrays[wanted]
        if scale != 1.0:
            arrays["d_k"] = H
        return arrays, {f"dL_d{wanted}": found[factors.index(wanted)]}

    return feed


def sized(letters):
    sizes = {"h": N, "i": T, "j": S, "a": H, "b": D, "c": C, "d": 17, "k": K, "g": 3}
    return tuple(sizes[letter] for letter in letters)


QUERY = {"Q": None, "X": sized("ib"), "W_Q": sized("hba")}
READ = {"O": None, "A": sized("hij"), "V": sized("hjc")}
SCORES = {"S": None, "Q": sized("hia"), "K": sized("hja")}
GROUPED = {"S": None, "Q": sized("kgia"), "K": sized("kja")}

product("grad-w-q", "ib,hba->hia", QUERY, "W_Q")
product("grad-values", "hij,hjc->hic", READ, "V")
product("grad-weights", "hij,hjc->hic", READ, "A")
product("grad-queries", "hia,hja->hij", SCORES, "Q", H**-0.5)
product("grad-grouped", "kgia,kja->kgij", GROUPED, "K", H**-0.5)


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


def attention(rng):
    """Scores, weights, values, output and log-sum-exp, and the gradients of all of them."""
    scores, value = draw(rng, *sized("hij")), draw(rng, *sized("hjc"))
    above, (d_scores, _) = slopes(rng, lambda s, v: jax.nn.softmax(s, axis=-1) @ v, scores, value)
    weights = jax.nn.softmax(scores, axis=-1)
    arrays = {"S": scores, "A": weights, "V": value, "O": weights @ value, "dL_dO": above}
    arrays |= {"dL_dA": above @ jnp.swapaxes(value, -1, -2), "dL_dS": d_scores}
    return arrays | {"r": (arrays["O"] * above).sum(axis=-1)}


fed("grad-scores", attention, "A dL_dA r", "dL_dS")
fed("grad-row-products", attention, "A V O dL_dA dL_dO", "r")
fed("grad-row-sum", attention, "A r dL_dS")


@executed("grad-recompute")
def recompute(rng):
    query, key, value = (draw(rng, *sized(letters)) for letters in ("hia", "hja", "hjc"))
    _, lse = attend_with_lse(query, key, value, implementation="reference", layout="NTH")
    found = jnp.einsum("hia,hja->hij", query, key) / H**0.5
    weights = jax.nn.softmax(found, axis=-1)
    return {"S": found}, {"lambda_": lse, "A": weights}


@executed("grad-rest")
def the_other_products(rng):
    # Self-attention: the same positions as queries and as keys.
    w_q, w_k, w_v = (draw(rng, *sized(letters)) for letters in ("hba", "hba", "hbc"))
    x, output, w_o = draw(rng, T, D), draw(rng, N, T, C), draw(rng, *sized("hcd"))
    d_y, (d_output, d_w_o) = slopes(rng, lambda o, w: jnp.einsum("hic,hcd->id", o, w), output, w_o)
    query = draw(rng, N, T, H)
    d_scores, (d_key,) = slopes(
        rng, lambda k: jnp.einsum("hia,hja->hij", query, k) / H**0.5, draw(rng, N, T, H)
    )
    d_query, d_value = draw(rng, N, T, H), draw(rng, N, T, C)

    def loss(x, w_k, w_v):
        made = (jnp.einsum("ib,hba->hia", x, w) for w in (w_q, w_k, w_v))
        return sum(map(jnp.vdot, (d_query, d_key, d_value), made))

    d_x, d_w_k, d_w_v = jax.grad(loss, argnums=(0, 1, 2))(x, w_k, w_v)
    arrays = {"X": x, "O": output, "Q": query, "W_Q": w_q, "W_K": w_k, "W_V": w_v, "W_O": w_o}
    arrays |= {"dL_dY": d_y, "dL_dS": d_scores, "dL_dQ": d_query, "dL_dV": d_value, "d_k": H}
    found = {"W_O": d_w_o, "O": d_output, "K": d_key, "W_K": d_w_k, "W_V": d_w_v, "X": d_x}
    return arrays, {f"dL_d{name}": slope for name, slope in found.items()}


@executed("grad-biases")
def biases(rng):
    above_q, (b_q,) = slopes(
        rng, lambda b: jnp.broadcast_to(b[:, None], (N, T, H)), draw(rng, N, H)
    )
    above_y, (b_o,) = slopes(rng, lambda b: jnp.broadcast_to(b, (T, D)), draw(rng, D))
    return {"dL_dQ": above_q, "dL_dY": above_y}, {"dL_db_Q": b_q, "dL_db_O": b_o}


@executed("grad-key-bias")
def key_bias(rng):
    query, key, bias = draw(rng, *sized("hia")), draw(rng, *sized("hja")), draw(rng, N, H)

    def scores(bias):
        return jnp.einsum("hia,hja->hij", query, key + bias[:, None]) / H**0.5

    above, (found,) = slopes(rng, scores, bias)
    return {"Q": query, "dL_dS": above, "d_k": H}, {"dL_db_K": found}


@executed("grad-rotation")
def rotation(rng):
    angles = rotary_angles(jnp.arange(T), 4)
    # Row a' is where R takes the a'-th unit vector: the transpose of R^{iaa'}.
    matrices = jnp.stack([rotate(jnp.eye(4)[:, None], one[None])[:, 0].T for one in angles])
    query = draw(rng, N, T, 4)
    above, (found,) = slopes(rng, lambda q: rotate(q, angles), query)
    return {"R": matrices, "dL_dQ_tilde": above}, {"dL_dQ": found}


# Dropout and gates.


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
