"""The executed equations of the chapter on what heads learn."""

import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, causal
from mha_book.specialization import composition, contribution, measures, similarity
from mha_book.specialization.patterns import (
    distance,
    mean_score,
    normalized_entropy,
    uniform_weights,
    visible_pairs,
)
from tests.book.equations import executed, tested

N, T, C, D, H = 3, 7, 5, 11, 2  # heads, positions, three widths


def seen():
    return visible_pairs(causal(), 1, T)


def weights(rng, visible=None):
    pairs = np.ones((1, T, T), bool) if visible is None else np.asarray(visible)
    raw = rng.uniform(0.1, 1, size=(1, N, T, T)) * pairs[:, None]
    return jnp.asarray(raw / raw.sum(-1, keepdims=True))


@executed("spec-measure")
def measure(rng):
    drawn, pattern = weights(rng, seen()), distance(seen())
    rows = pattern.counted[0].astype(float)
    given = {"A": drawn[0], "r": rows, "s": pattern.score[0]}
    return given, {"n": float(rows.sum()), "m": mean_score(drawn, pattern)}


@executed("spec-null")
def null(rng):
    pattern, even = distance(seen()), uniform_weights(seen())
    rows = pattern.counted[0].astype(float)
    sums = measures.add_texts(measures.measure_heads([even], seen(), {"x": pattern}))["x"]
    given = {"E": seen()[0].astype(float), "r": rows, "n": float(rows.sum())}
    made = {"U": even[0, 0], "m_0": float(measures.baseline_mean(sums))}
    return given | {"s": pattern.score[0]}, made


@executed("spec-excess")
def above_chance(rng):
    total, rows, even = rng.uniform(2, 9, size=(1, N)), 11.0, 2.5
    sums = measures.MeasureSums(jnp.asarray(total), jnp.array(even), jnp.array(rows))
    given = {"m": total[0] / rows, "m_0": even / rows}
    return given, {"kappa": measures.above_chance(sums)[0]}


@executed("spec-entropy")
def entropy(rng):
    # Every row sees every key: a weight of 0 is left to the text.
    everywhere = np.ones((1, T, T), bool)
    drawn = weights(rng)
    rows = np.ones(T)
    found = normalized_entropy(drawn, jnp.asarray(everywhere))[0][0].mean(-1)
    given = {"A": drawn[0], "r": rows, "n": float(T), "c": np.full(T, float(T))}
    return given, {"e": found}


@executed("spec-share")
def share(rng):
    outputs, w_o = rng.normal(size=(1, N, T, C)), rng.normal(size=(N, C, D))
    towards = rng.normal(size=(1, T, D))
    found = contribution.direct_logit_attribution(
        *(jnp.asarray(x) for x in (outputs, w_o, towards))
    )
    return {"O": outputs[0], "W_O": w_o, "u": towards[0]}, {"z": found[0]}


@executed("spec-composition")
def composed(rng):
    shapes = ((D, 1, H), (D, 1, H), (D, 1, C), (1, C, D))
    one, other = (
        MultiHeadParams(*(jnp.asarray(rng.normal(size=s)) for s in shapes)) for _ in range(2)
    )
    writes = one.w_v[:, 0] @ one.w_o[0]
    reads = other.w_q[:, 0] @ other.w_k[:, 0].T
    found = composition.composition(one, other).key[0, 0]
    return {"M": writes, "R": reads}, {"P": writes @ reads.T, "gamma": float(found)}


@tested(
    "spec-divergence",
    latex=r"""\begin{aligned}
\bar A^{hgij} &= \frac{1}{2} \left(A^{hij} + A^{gij}\right) \\
f^{hi} &= \sum_j A^{hij} \log A^{hij} \\
\bar f^{hgi} &= \sum_j \bar A^{hgij} \log \bar A^{hgij} \\
w^{hgi} &= f^{hi} + f^{gi} - 2 \bar f^{hgi} \\
d^{hg} &= \frac{r^i\, w^{hgi}}{2\, n \log 2}
\end{aligned}""",
    alterations=("sign", "half", "head"),
)
def divergence(rng, altered):
    drawn = weights(rng).astype(jnp.float32)
    sums, rows = similarity.jensen_shannon_sums(drawn, jnp.ones((1, T, T), bool))
    a = np.asarray(drawn[0], np.float64)
    middle = (a[:, None] + a[None, :]) / (1 if altered == "half" else 2)
    f, between = (a * np.log(a)).sum(-1), (middle * np.log(middle)).sum(-1)
    other = f[None, ::-1] if altered == "head" else f[None, :]
    sign = -1 if altered == "sign" else 1
    found = (f[:, None] + sign * other - 2 * between).sum(-1) / (2 * float(rows) * np.log(2))
    return sums / rows, found


@executed("spec-mixing")
def mixing(rng):
    outputs, w_o = rng.normal(size=(N, T, C)), rng.normal(size=(N, C, D))
    side_by_side = np.moveaxis(outputs, 0, 1).reshape(T, N * C)
    return {"O": outputs, "W_O": w_o}, {"Y": side_by_side @ w_o.reshape(N * C, D)}


@executed("spec-row-norms")
def row_norms(rng):
    w_v, w_o = rng.normal(size=(N, D, C)), rng.normal(size=(N, C, D))
    params = MultiHeadParams(*(jnp.asarray(np.moveaxis(w_v, 0, 1)),) * 3, jnp.asarray(w_o))
    whole = np.square(composition.block_norms(params).w_v_w_o)
    products = w_v @ w_o
    rows = np.square(products).sum(1)
    np.testing.assert_allclose(rows.sum(1), whole, rtol=1e-5)
    return {"W_V": w_v, "W_O": w_o}, {"M": products, "nu": rows, "rho": rows / rows.sum(0)}
