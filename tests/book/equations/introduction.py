"""The equations of the introduction, held to the functions that its cells define."""

import json

import jax.numpy as jnp
import numpy as np

from mha_book import scaled_dot_product_attention
from tests.book.equations import executed, tested
from tests.book.extensions import ROOT

T, C = 5, 3


def measures():
    """The functions that the page itself defines, run from its text."""
    notebook = json.loads((ROOT / "book" / "introduction.ipynb").read_text(encoding="utf8"))
    source = next("".join(c["source"]) for c in notebook["cells"] if c["id"] == "measures")
    namespace = {"np": np}
    exec(source, namespace)
    return namespace


def row_stochastic(rng):
    weights = rng.uniform(size=(T, T))
    return weights / weights.sum(axis=-1, keepdims=True)


@tested(
    "intro-offset",
    latex=r"f_{\text{prev}} = \frac{1}{T - 1} \sum_{i=1}^{T-1} A^{i,\,i-1}",
    alterations=("sign", "count"),
)
def offset(rng, altered):
    weights = row_stochastic(rng)
    left = measures()["offset_share"](weights, -1)
    pairs = [(i - 1, i) if altered == "sign" else (i, i - 1) for i in range(1, T)]
    return left, sum(weights[pair] for pair in pairs) / (T if altered == "count" else T - 1)


@tested(
    "intro-entropy",
    latex=r"\eta^i = \sum_{j} A^{ij} \log \frac{1}{A^{ij}}",
    alterations=("sign", "index", "count"),
)
def entropy(rng, altered):
    visible = np.tri(T, dtype=bool)
    weights = row_stochastic(rng) * visible
    weights = weights / weights.sum(axis=-1, keepdims=True)
    left = measures()["spread"](weights, visible)
    right = []
    for i in range(1, T):  # position 0 sees itself alone
        n = T if altered == "count" else i + 1
        row = [
            (weights[i, j], weights[i, i - j] if altered == "index" else weights[i, j])
            for j in range(i + 1)
        ]
        right.append(sum(a * np.log(1 / b) for a, b in row) / np.log(n))  # the page divides so
    return left, -np.array(right) if altered == "sign" else np.array(right)


@executed("intro-average")
def average(rng):
    weights, value = row_stochastic(rng), rng.normal(size=(T, C))
    # Scores log A give the weights A: the query is the identity, the key holds the scores.
    query, key = jnp.eye(T, dtype=jnp.float32), jnp.asarray(np.log(weights).T, jnp.float32)
    output = scaled_dot_product_attention(query, key, jnp.asarray(value, jnp.float32), scale=1.0)
    return {"A": weights, "V": value}, {"O": output}
