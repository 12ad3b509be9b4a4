"""The tested equation of the page of mended snippets."""

from tests.book.equations import tested

D = 11  # positions, and features of the model


@tested(
    "layer-columns",
    latex=r"\left( X W_Q \right)^\top = W_Q^\top X^\top",
)
def columns(rng):
    x, w = rng.normal(size=(2, D, D))
    return (x @ w).T, w.T @ x.T
