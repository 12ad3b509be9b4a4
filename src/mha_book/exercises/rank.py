"""Checks of the exercises of the chapter on the rank of heads."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise, judge
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.parameters import MultiHeadParams


@exercise("effective-rank")
def _effective_rank(attempt: Attempt) -> Iterator[str | None]:
    for values in ([2.0, 2.0, 2.0, 0.0], [3.0, 1.0], [5.0, 0.0, 0.0]):
        sigma = np.array(values)
        powers = "the sums are those of the squares and of the fourth powers"
        hints = {
            powers: sigma.sum() ** 2 / (sigma**2).sum(),
            "that is the rank, which counts weak directions in full": np.count_nonzero(sigma),
        }
        want = float((sigma**2).sum() ** 2 / (sigma**4).sum())
        yield judge(attempt(sigma), want, hints, f"the effective rank of {values}: ")


@exercise("double")
def _double(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    into = [rng.normal(size=(6, 3, 5)) for _ in range(3)]
    arrays = [*into, rng.normal(size=(3, 5, 6))]
    params = MultiHeadParams(*(jnp.asarray(w, jnp.float32) for w in arrays))
    got, h = attempt(params, 1), 1
    if not isinstance(got, MultiHeadParams):
        yield f"expected MultiHeadParams; got {type(got).__name__}"
    if got.w_o.shape[0] != 4 or any(w.shape[1] != 4 for w in got[:3]):
        shapes = [tuple(w.shape) for w in got[:4]]
        yield f"expected 4 heads, one more than the 3 given; got the shapes {shapes}"
    for name, mine, theirs in zip(("w_q", "w_k", "w_v"), got[:3], params[:3], strict=True):
        if not np.array_equal(mine[:, 3], theirs[:, h]):
            yield f"{name}: the last head should have the projection of head {h}"
    idle = [n for n in (h, 3) if not np.any(np.asarray(got.w_o[n]))]
    if idle:
        yield f"head {idle[0]} is idle: its rows of w_o are 0"
    x = jnp.asarray(rng.normal(size=(4, 6)), jnp.float32)
    before, after = (np.asarray(multi_head_attention(p, x)) for p in (params, got))
    if np.allclose(before, after, atol=1e-4 * np.abs(before).max()):
        return
    hint = ""
    if np.allclose(got.w_o[3], params.w_o[h]) and np.allclose(got.w_o[h], params.w_o[h]):
        hint = f": head {h} is counted twice, since its double adds the same once more"
    yield f"the layer computes something else{hint}"


@exercise("two-wide")
def _two_wide(attempt: Attempt) -> Iterator[str | None]:
    for n in (2, 3, 8, 37, 100):
        got = attempt(n)
        where = f"for n = {n}"
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            yield f"{where} expected a pair, queries and keys; got {type(got).__name__}"
        query, key = (np.asarray(x, np.float64) for x in got)
        for x, name in ((query, "queries"), (key, "keys")):
            if x.shape != (n, 2):
                yield f"{where} expected {name} of shape ({n}, 2); got {x.shape}"
            if not np.isfinite(x).all():
                yield f"{where} the {name} are not finite"
        scores = query @ key.T / np.sqrt(2)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        own = np.diag(weights / weights.sum(1, keepdims=True))
        best = scores.argmax(1)
        if (best != np.arange(n)).any():
            i = int(np.argmax(best != np.arange(n)))
            yield (
                f"{where} query {i} prefers key {best[i]}: keys of one length, all around a circle?"
            )
        if own.min() < 0.9:
            yield (
                f"{where} every query prefers its own key, with {own.min():.2f} of the weight at "
                "least: make the queries longer, the more keys the longer"
            )
