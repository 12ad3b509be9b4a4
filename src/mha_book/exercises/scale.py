"""Checks of the exercises of the chapter on what the scale buys."""

import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("cosine")
def _cosine(attempt: Attempt) -> Iterator[str | None]:
    for width, keys, weight in ((64, 32, 0.9), (512, 32, 0.9), (64, 100, 0.5)):
        odds, root = weight / (1 - weight), math.sqrt(width)
        score = math.log(odds * (keys - 1))
        norms = "the norms multiply to d_k, and the scale takes away sqrt(d_k), not all of it"
        others = "the other keys count too: each adds exp(0) = 1 to the sum"
        hints = {
            "that is the score itself; the score is the cosine times sqrt(d_k)": score,
            norms: score / width,
            "there are S - 1 other keys, not S": math.log(odds * keys) / root,
            others: math.log(odds) / root,
        }
        where = f"d_k={width}, S={keys}, weight={weight}: "
        yield judge(attempt(width, keys, weight), score / root, hints, where)


@exercise("temperature")
def _temperature(attempt: Attempt) -> Iterator[str | None]:
    scores = np.random.default_rng(0).normal(size=(3, 7, 11)) * np.array([0.5, 1, 4])[:, None, None]
    limit = math.log(scores.shape[-1])

    def mean_entropy(factor: float) -> float:
        shifted = factor * scores - (factor * scores).max(-1, keepdims=True)
        log_weights = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return float(-(np.exp(log_weights) * log_weights).sum(-1).mean())

    for share in (0.8, 0.5, 0.2):
        factor = float(attempt(jnp.asarray(scores, jnp.float32), share * limit))
        if not 0 < factor < math.inf:
            yield f"expected a positive factor; got {factor}"
        got = mean_entropy(factor)
        if not abs(got - share * limit) <= 1e-2:
            aside = "the mean entropy"
            if abs(mean_entropy(1 / factor) - share * limit) <= 1e-2:
                aside = "1/factor would do: the factor multiplies the scores; the mean entropy"
            yield f"{aside} at factor {factor:.3f} is {got:.3f}; wanted {share * limit:.3f}"


@exercise("same-training")
def _same(attempt: Attempt) -> Iterator[str | None]:
    for width in (4, 64, 100):
        for optimizer in ("sgd", "adam"):
            root = math.sqrt(width)
            want = (1 / root, 1 / width if optimizer == "sgd" else 1 / root)
            case = f"d_k={width}, {optimizer}"
            got = tuple(float(x) for x in attempt(width, optimizer))
            if len(got) != 2:
                yield f"{case}: expected two factors, of the start and of the rate; got {len(got)}"
            if not math.isclose(got[0], want[0], rel_tol=1e-4):
                yield (
                    f"{case}: the factor of the start is {got[0]:.4f}; the first scores have to be "
                    f"those of the divided training"
                )
            if math.isclose(got[1], want[1], rel_tol=1e-4):
                continue
            if optimizer == "sgd" and math.isclose(got[1], 1 / root, rel_tol=1e-4):
                yield (
                    f"{case}: plain descent moves by the gradient, and without the division that "
                    f"of W_Q is sqrt(d_k) times as long"
                )
            yield f"{case}: expected the rate times {want[1]:.4f}; got {got[1]:.4f}"
