"""The executed and the tested equations of the chapter on scaled dot-product attention."""

from itertools import product

import jax.numpy as jnp
import numpy as np

from mha_book import attention_weights, scaled_dot_product_attention
from tests.book.equations import executed, fed, tested
from tests.book.equations.index_notation import whole

T, S, D_K, C = 3, 5, 2, 7


def operands(rng):
    return tuple(jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((T, D_K), (S, D_K), (S, C)))


def exact_scores(q, k):
    return np.array(
        [[sum(q[i, a] * k[j, a] for a in range(D_K)) for j in range(S)] for i in range(T)]
    )


def exact_weights(scores):
    return np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)


@tested(
    "sdpa-matrix", latex=r"O = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V"
)
def matrix(rng):
    q, k, v = operands(rng)
    s = np.asarray(q) @ np.asarray(k).T / np.sqrt(D_K)
    return scaled_dot_product_attention(q, k, v), exact_weights(s) @ np.asarray(v)


@tested(
    "sdpa-moments",
    latex=r"""\begin{aligned}
\operatorname{E}\Big[\sum_a q^a k^a\Big] &= 0, \\
\operatorname{Var}\Big[\sum_a q^a k^a\Big]
&= \sum_a \operatorname{E}\big[(q^a)^2\big]\, \operatorname{E}\big[(k^a)^2\big] \\
&= d_k
\end{aligned}""",
    tolerance=1e-9,
)
def moments(rng):
    # Exact, by going through every outcome: entries of q are ±1, those of k are 0 or ±sqrt(3/2)
    # with probability 1/3 each; both have mean 0 and variance 1.
    d_k = 3
    signs, thirds = (-1.0, 1.0), (-np.sqrt(1.5), 0.0, np.sqrt(1.5))
    dots = [
        sum(a * b for a, b in zip(q, k, strict=True))
        for q, k in product(product(signs, repeat=d_k), product(thirds, repeat=d_k))
    ]
    products = d_k * np.mean(np.square(signs)) * np.mean(np.square(thirds))
    return [np.mean(dots), np.var(dots), products], [0.0, d_k, d_k]


def one_head(rng):
    """A head of a layer and its steps."""
    found = whole(rng)
    head = {name: found[name][2] for name in ("Q", "K", "V", "A", "O", "S", "W_V")}
    return head | {"X": found["X"], "d_k": found["d_k"], "m": head["S"].max(-1)}


fed("sdpa-scores", one_head, "Q K d_k", "S")
fed("sdpa-softmax", one_head, "S", "A")
fed("sdpa-output", one_head, "A V", "O")
fed("sdpa-shift", one_head, "S m")
fed("sdpa-average", one_head, "X A V W_V")


@executed("sdpa-bias")
def bias(rng):
    q, k, _ = operands(rng)
    b = jnp.asarray(rng.normal(size=(T, S)), jnp.float32)
    given = {"S": exact_scores(q, k) / np.sqrt(D_K), "B": b}
    return given, {"A": attention_weights(q, k, bias=b)}
