"""Checks of the exercises of the chapter on variants."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge
from mha_book.notation import multi_head_layer
from mha_book.notation.system import cached_elements, replace_equations


@exercise("heads")
def _heads(attempt: Attempt) -> Iterator[str | None]:
    for latent, rotated, width in ((256, 32, 64), (512, 64, 128), (192, 128, 64), (7, 4, 5)):
        got, want = attempt(latent, rotated, width), (latent + rotated) // (2 * width)
        if not isinstance(got, int) or isinstance(got, bool):
            yield f"expected a whole number; got {type(got).__name__}"
        hints = {
            "a key head has a key and a value": (latent + rotated) // width,
            "the rotated part is kept, too": latent // (2 * width),
            "that many would keep more: round down": want + 1,
        }
        where = f"for a latent of {latent} and {rotated} with keys of {width}: "
        yield judge(got, want, hints, where)


@exercise("line")
def _line(attempt: Attempt) -> Iterator[str | None]:
    latex = attempt()
    if not isinstance(latex, str):
        yield f"expected LaTeX as text; got {type(latex).__name__}"
    layer = multi_head_layer()
    try:
        changed = replace_equations(layer, latex)
    except ValueError as error:
        yield f"the lines make no layer with the others: {error}"
    if set(changed.names) != set(layer.names):
        yield f"expected a layer of {', '.join(layer.names)}; got {', '.join(changed.names)}"
    n, t, d, a, c = 3, 4, 5, 2, 7
    rng = np.random.default_rng(0)
    shapes = {"X": (t, d), "W_Q": (n, d, a), "W_K": (n, d, a), "W_V": (d, c), "W_O": (n, c, d)}
    w = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    try:
        counts = cached_elements(changed, h=n, a=a, b=d, c=c, d=d)
        found = changed(w)["Y"]
    except ValueError as error:
        yield f"with W_V of axes (b, c) the layer does not run: {error}"
    if counts != {"K": n * a, "V": c}:
        yield f"expected K to keep {n * a} numbers and V {c}; got {counts}"
    q, k = (np.einsum("ib,hba->hia", w["X"], w[name]) for name in ("W_Q", "W_K"))
    raised = np.exp(np.einsum("hia,hja->hij", q, k) / np.sqrt(a))
    heads = (raised / raised.sum(axis=-1, keepdims=True)) @ (w["X"] @ w["W_V"])
    if not np.allclose(found, np.einsum("hic,hcd->id", heads, w["W_O"]), atol=1e-3):
        yield "the lines run, but the output is not that of one value for all heads"


@exercise("sink")
def _sink(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    for scores, sink in ((rng.normal(size=(3, 5)), 0.7), (1000 + rng.normal(size=(2, 3)), 999.0)):
        scores = scores.astype(np.float32)
        got = np.asarray(attempt(scores, sink))
        if got.shape != scores.shape:
            yield f"expected the shape (T, S) = {scores.shape}; got {got.shape}"
        most = max(float(scores.max()), sink)
        raised = np.exp(scores.astype(float) - most)
        want = raised / (raised.sum(axis=-1, keepdims=True) + np.exp(sink - most))
        if not np.isfinite(got).all():
            yield "not finite for scores of 1000: subtract the largest of them and of the sink"
        if not np.allclose(got, want, atol=1e-4):
            if np.allclose(got.sum(axis=-1), 1, atol=1e-4):
                yield "the rows sum to one: the sink belongs to the denominator"
            yield "the weights differ from exp(score) over the sum with exp(sink)"
