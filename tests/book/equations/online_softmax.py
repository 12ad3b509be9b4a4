"""The executed and the tested equations of the chapter on attention without stored scores."""

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import attend_with_lse, scaled_dot_product_attention
from mha_book.attention.online_softmax import finalize, init, merge, update
from tests.book.equations import executed, fed, tested
from tests.book.equations.gradients import draw

T, C, H, BLOCK = 3, 7, 11, 5  # rows, widths of values and keys, keys of a block


def named(known, suffix=""):
    """The three sums under the names of the page."""
    names = ("m", "ell", "o")
    values = (known.maximum[..., 0], known.total[..., 0], known.output)
    return {name + suffix: x for name, x in zip(names, values, strict=True)}


def seen(rng, blocks):
    """Scores and values of some blocks, and what the package knows after them."""
    scores, values = 3 * draw(rng, T, blocks * BLOCK), draw(rng, blocks * BLOCK, C)
    known = init((T, C), scores.dtype)
    for u in range(blocks):
        cut = slice(u * BLOCK, (u + 1) * BLOCK)
        known = update(known, scores[:, cut], values[cut])
    return scores, values, known


def step(rng):
    """Two blocks, and one more: its arrays, what was known before it and what is after."""
    scores, values, before = seen(rng, 2)
    new_scores, new_values = 4 * draw(rng, T, BLOCK), draw(rng, BLOCK, C)
    after = update(before, new_scores, new_values)
    assert (after.maximum > before.maximum).any()
    return scores, values, before, new_scores, new_values, after


@executed("hw-row")
def row(rng):
    q, k, v = draw(rng, T, H), draw(rng, BLOCK, H), draw(rng, BLOCK, C)
    scores = q @ k.T / H**0.5
    arrays = {"S": scores, "m": scores.max(axis=-1), "V": v}
    return arrays, {"O": scaled_dot_product_attention(q, k, v)}


@executed("hw-known")
def known(rng):
    scores, values, after = seen(rng, 3)
    sums = named(after)
    return {"S": scores, "V": values, "m": sums.pop("m")}, sums


@tested("hw-maximum", latex=r"m'^{i} = \max\Big(m^{i},\ \max_j S_n^{ij}\Big)")
def maximum(rng):
    _, _, before, scores, _, after = step(rng)
    old, new = np.asarray(before.maximum)[:, 0], np.asarray(scores).max(axis=-1)
    return after.maximum[:, 0], np.maximum(old, new)


@executed("hw-update")
def updated(rng):
    _, _, before, scores, values, after = step(rng)
    sums = named(after, "_prime")
    arrays = named(before) | {"S_n": scores, "V_n": values, "m_prime": sums.pop("m_prime")}
    return arrays, sums


@executed("hw-finish")
def finished(rng):
    *_, after = seen(rng, 3)
    output, lse = finalize(after)
    return named(after), {"O": output, "lambda_": lse}


@executed("hw-fade")
def fade(rng):
    scores, _, before, _, _, after = step(rng)
    return {"S": scores, "m": before.maximum[:, 0], "m_prime": after.maximum[:, 0]}, {}


def two_parts(rng):
    one, other = (seen(rng, blocks)[2] for blocks in (1, 2))
    assert (one.maximum > other.maximum).any()
    assert (one.maximum < other.maximum).any()
    return one, other, merge(one, other)


@executed("hw-merge")
def merged(rng):
    one, other, both = two_parts(rng)
    sums = named(both)
    return named(one, "_1") | named(other, "_2") | {"m": sums.pop("m")}, sums


@executed("hw-weight")
def weight(rng):
    one, other, both = two_parts(rng)
    return named(one, "_1") | named(other, "_2") | named(both), {}


@executed("hw-split")
def split(rng):
    q, k, v = draw(rng, T, H), draw(rng, 2 * BLOCK, H), draw(rng, 2 * BLOCK, C)
    arrays = {}
    for part, cut in (("1", slice(0, 3)), ("2", slice(3, None))):
        output, lse = attend_with_lse(q, k[cut], v[cut], implementation="reference")
        arrays |= {f"O_{part}": output, f"lambda_{part}": lse}
    output, lse = attend_with_lse(q, k, v, implementation="reference")
    return arrays, {"O": output, "lambda_": lse}


@executed("hw-traffic")
def traffic(rng):
    given = {"n_bytes": 2.0, "H": 3.0, "C": 5.0, "T": 28.0, "S": 11.0, "n_rows": 7.0}
    elements = 0
    for _ in range(4):  # blocks of queries: queries, output, and all keys and values
        elements += 7 * 3 + 7 * 5 + 11 * 3 + 11 * 5
    return given, {"M_moved": 2.0 * elements}


def blocked(rng, count=2):
    """Attention over blocks of keys with the gradients of its parts, by JAX."""
    scores, values = draw(rng, count, T, BLOCK), draw(rng, count, BLOCK, C)

    def outputs(scores, values):
        lse = jax.nn.logsumexp(scores, axis=(0, 2))
        weights = jnp.exp(scores - lse[None, :, None])
        return jnp.einsum("uij,ujc->ic", weights, values), lse

    (output, lse), pull = jax.vjp(outputs, scores, values)
    above = draw(rng, T, C), draw(rng, T)
    d_scores, d_values = pull(above)
    flat = jnp.swapaxes(scores, 0, 1).reshape(T, -1)
    weights = jnp.swapaxes(jax.nn.softmax(flat, axis=-1).reshape(T, count, BLOCK), 0, 1)
    arrays = {"S": scores, "V": values, "A": weights, "O": output, "lambda_": lse}
    arrays |= {"dL_dO": above[0], "dL_dlambda_": above[1], "r": (output * above[0]).sum(axis=-1)}
    return arrays | {"dL_dS": d_scores, "dL_dV": d_values}


fed("hw-again", blocked, "S lambda_", "A")
fed("hw-scores", blocked, "A V dL_dO r dL_dlambda_", "dL_dS")


@executed("hw-slope")
def slope(rng):
    scores = draw(rng, BLOCK)
    return {"S": scores}, {"dlambda__dS": jax.grad(jax.nn.logsumexp)(scores)}


@executed("hw-output-slope")
def output_slope(rng):
    scores, values = draw(rng, BLOCK), draw(rng, BLOCK, C)
    weights = jax.nn.softmax(scores)
    slopes = jax.jacobian(lambda s: jax.nn.softmax(s) @ values)(scores)
    return {"A": weights, "V": values, "O": weights @ values}, {"dO_dS": slopes}


def row_products(rng):
    """r as the softmax's backward pass has it: the weights' average of their own gradient."""
    arrays = blocked(rng)
    _, pull = jax.vjp(lambda a: jnp.einsum("uij,ujc->ic", a, arrays["V"]), arrays["A"])
    (d_weights,) = pull(arrays["dL_dO"])
    return arrays | {"r": (arrays["A"] * d_weights).sum(axis=(0, 2))}


fed("hw-inner", row_products, "O dL_dO", "r")


def gradients(rng):
    arrays = blocked(rng)
    query, keys = draw(rng, T, H), draw(rng, 2, BLOCK, H)
    _, pull = jax.vjp(lambda q, k: jnp.einsum("ia,uja->uij", q, k), query, keys)
    d_query, d_keys = pull(arrays["dL_dS"])
    return arrays | {"Q": query, "K": keys, "dL_dK": d_keys, "dL_dQ": d_query}


fed("hw-products", gradients, "A dL_dO dL_dS Q K", "dL_dV dL_dK dL_dQ")
