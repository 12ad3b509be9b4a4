"""Checks of the exercises of the chapter on variants."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


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
    n, t, d, h = 3, 4, 5, 2
    rng = np.random.default_rng(0)
    shapes = ((t, d), (d, n, h), (d, n, h), (d, h), (n, h, d))
    x, w_q, w_k, w_v, w_o = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    q, k = (np.einsum("td,dnh->nth", x, w) for w in (w_q, w_k))
    raised = np.exp(q @ np.swapaxes(k, 1, 2) / np.sqrt(h))

    def output(raised: np.ndarray) -> np.ndarray:
        heads = (raised / raised.sum(axis=-1, keepdims=True)) @ (x @ w_v)
        return np.asarray(np.einsum("nth,nhd->td", heads, w_o))

    got = attempt(x, w_q, w_k, w_v, w_o)
    if np.shape(got) != (t, d):
        yield f"expected the shape (T, D) = {(t, d)}; got {np.shape(got)}"
    if np.allclose(got, output(raised), atol=1e-3):
        yield "a query sees tokens that come after it"
    if not np.allclose(got, output(np.tril(raised)), atol=1e-3):
        yield "the output is not that of one value for all heads"


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
