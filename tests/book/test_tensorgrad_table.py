"""The table that compares with tensorgrad: our column is tried again, theirs has its sources."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from mha_book.notation import Equation, System, multi_head_layer

ROWS = {
    row["task"]: row
    for row in json.loads(
        (Path(__file__).parents[2] / "book/data/tensorgrad.json").read_text(encoding="utf8")
    )["rows"]
}
RNG = np.random.default_rng(4)
Q, K, X = (RNG.normal(size=shape) for shape in ((2, 3, 7), (2, 5, 7), (3, 14)))
SCORES = Equation(r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}")
SOFTMAX = Equation(r"A^{ij} = \frac{\exp(S^{ij})}{\sum_{j'} \exp(S^{ij'})}")
PRODUCT = Equation(r"y^i = A^{ij} x^j")
EXPECTED = np.einsum("hia,hja->hij", Q, K) / np.sqrt(7)


def close(value, expected):
    return np.allclose(value, expected, rtol=1e-12)


def refused(call):
    try:
        call()
    except ValueError:
        return True
    return False


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


TRIED = {
    "scores": lambda: close(SCORES(Q=Q, K=K, d_k=7), EXPECTED),
    "softmax": lambda: close(SOFTMAX(S=X), softmax(X)),
    "bias": lambda: (
        refused(lambda: Equation("y^{ia} = X^{ia} + b^a"))
        and close(Equation("y^{ia} = X^{ia} + b^a", broadcast="i")(X=X, b=X[0]), X + X[0])
    ),
    "delta": lambda: close(Equation(r"M^{ij} = x^i \delta^{ij}")(x=X[0]), np.diag(X[0])),
    "positions": lambda: close(
        Equation(r"Z^{hia} = X^{i(hH+a)}")(X=X, H=7, dims={"h": 2, "a": 7}),
        X.reshape(3, 2, 7).swapaxes(0, 1),
    ),
    "functions": lambda: not refused(lambda: Equation(r"v = \max_i q^i")),
    "symmetry": lambda: Equation("y^i = A^{ji} x^j") == PRODUCT,
    "same": lambda: Equation("y^i = A^{ik} x^k") == PRODUCT,
    "expectation": lambda: (
        not refused(lambda: Equation(r"v = \operatorname{E}\left(q^a k^a\right)"))
    ),
    "second": lambda: not refused(lambda: SOFTMAX.jacobian("S").jacobian("S")),
    "taylor": lambda: any("taylor" in name for name in (*dir(Equation), *dir(System))),
    "gradients": lambda: close(
        SCORES.gradient("Q")(K=K, d_k=7, dL_dS=EXPECTED),
        np.einsum("hij,hja->hia", EXPECTED, K) / np.sqrt(7),
    ),
    "jacobian": lambda: close(
        PRODUCT.jacobian("A")(x=X[0], dims={"i": 2}), np.eye(2)[:, :, None] * X[0]
    ),
    "vmap": lambda: close(
        jax.vmap(lambda q: SCORES(Q=q, K=K, d_k=7))(np.stack([Q, 2 * Q]))[1], 2 * EXPECTED
    ),
    "dtypes": lambda: all(
        SOFTMAX(S=jax.numpy.asarray(X, d)).dtype == d for d in ("float16", "bfloat16", "float64")
    ),
    "sizes": lambda: refused(lambda: SCORES(Q=Q, K=K[..., 1:], d_k=7)),
    "einsum": lambda: Equation("Y^{id} = O^{hic} W^{hcd}").einsum == "hic,hcd->id",
    "flops": lambda: PRODUCT.flops(i=3, j=5) == 30,
    "shapes": lambda: PRODUCT.shapes(i=3, j=5) == {"y": (3,), "A": (3, 5), "x": (5,)},
    "parameters": lambda: multi_head_layer().parameters(["W_Q"], h=2, b=3, a=5) == {"W_Q": 30},
}


@pytest.mark.parametrize("name", TRIED)
@pytest.mark.loose_promotion
def test_our_column_holds(name):
    with jax.enable_x64(True):
        assert bool(TRIED[name]()) == ROWS[name]["mha_book"]["does"]


def test_their_column_has_its_sources_and_what_it_does_that_we_do_not():
    for name, row in ROWS.items():
        theirs = row["tensorgrad"]
        assert theirs["source"], name
        assert all(source.startswith("tensorgrad.") for source in theirs["source"]), name
        assert theirs["how"] if theirs["does"] else theirs["detail"], name
    ahead = {n for n, r in ROWS.items() if r["tensorgrad"]["does"] and not r["mha_book"]["does"]}
    assert {"second", "expectation", "taylor"} <= ahead
