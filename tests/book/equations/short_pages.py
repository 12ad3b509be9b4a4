"""The equations of pages that display one, two or three of them."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.positions import scheme_angles
from mha_book import multi_head_attention, scaled_dot_product_attention
from mha_book.costs import traced_matmul_flops
from mha_book.models.smollm2 import CONFIG
from tests.book.equations import cost, executed, tested, variants
from tests.book.equations.index_notation import whole


@executed("intro-average")
def average(rng):
    weights, value = rng.uniform(size=(5, 5)), rng.normal(size=(5, 3))
    weights /= weights.sum(axis=-1, keepdims=True)
    # Scores log A give the weights A: the query is the identity, the key holds the scores.
    query, key = jnp.eye(5, dtype=jnp.float32), jnp.asarray(np.log(weights).T, jnp.float32)
    output = scaled_dot_product_attention(query, key, jnp.asarray(value, jnp.float32), scale=1.0)
    return {"A": weights, "V": value}, {"O": output}


@executed("one-page-layer")
def layer(rng):
    w = variants.draw(rng)
    y = multi_head_attention(variants.layer(w), w["X"])
    return {**w, "d_k": variants.H}, {"Y": y}


@executed("one-page-costs")
def costs(rng):
    params = cost.shapes(c=cost.H)
    x = jax.ShapeDtypeStruct((cost.T, cost.D), jnp.float32)
    counted = {
        "P": sum(w.size for w in jax.tree.leaves(params)),
        "F": traced_matmul_flops(multi_head_attention, params, x),
        "M_cache": 4 * sum(array.size for array in cost.kept("cache", params)),
    }
    given = {name: getattr(cost, name) for name in ("D", "N", "K", "H", "T")}
    given |= {"S": cost.T, "n_bytes": 4}
    return given, {name: float(count) for name, count in counted.items()}


@tested(
    "layer-concat-sum",
    latex=r"""\operatorname{Concat}(O^1, \dots, O^N)\; W^O
= \begin{pmatrix} O^1 & \cdots & O^N \end{pmatrix}
\begin{pmatrix} W_O^1 \\ \vdots \\ W_O^N \end{pmatrix}
= \sum_h O^h W_O^h""",
)
def concat_is_a_sum(rng):
    found = whole(rng)
    heads, w_o, y = (np.asarray(found[name]) for name in ("O", "W_O", "Y"))
    total = sum(head @ out for head, out in zip(heads, w_o, strict=True))
    return np.stack([np.concatenate(heads, axis=1) @ np.concatenate(w_o), y]), np.stack([total] * 2)


@executed("sdpa-aligned")
def aligned(rng):
    d_k, rho = 11, 0.3
    q = rng.normal(size=d_k)
    q *= np.sqrt(d_k) / np.linalg.norm(q)
    aside = rng.normal(size=d_k)
    aside -= aside @ q / d_k * q
    aside *= np.sqrt(d_k) / np.linalg.norm(aside)
    k = rho * q + np.sqrt(1 - rho**2) * aside
    return {"rho": rho, "d_k": d_k}, {"s": q @ k / np.sqrt(d_k)}


@tested("position-ntk", latex=r"\theta' = \theta\, \kappa^{H/(H-2)}", tolerance=1e-4)
def ntk(rng):
    """What the base is for: the slowest pair is slowed by κ, the fastest not at all."""
    width, factor = CONFIG.head_dim, 4.0
    angles = [scheme_angles(way, jnp.array([1]), CONFIG, factor)[0] for way in ("plain", "ntk")]
    want = CONFIG.rope_theta * factor ** (width / (width - 2))
    base = float(angles[1][1]) ** (-width / 2)  # of pair 1: base^(-2/H)
    slowed = [float(angles[0][p] / angles[1][p]) for p in (0, -1)]
    return [base / 1e5, *slowed], [want / 1e5, 1.0, factor]


@executed("sink-denominator")
def denominator(rng):
    """A first key whose value is 0 stands in the denominator alone."""
    query, key, value = (
        jnp.asarray(rng.normal(size=(2, *shape))) for shape in ((3, 7), (6, 7), (6, 11))
    )
    value = value.at[:, 0].set(0)
    scores = jnp.einsum("hia,hja->hij", query, key) / 7**0.5
    arrays = {"S": scores[..., 1:], "S_0": scores[..., 0], "V": value[:, 1:]}
    return arrays, {"O": scaled_dot_product_attention(query, key, value)}
