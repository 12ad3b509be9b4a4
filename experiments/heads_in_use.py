"""Whether SmolLM2 needs its induction heads.

Closes the eight heads with the highest induction scores of heads.json, by 0 and by their means over
other inputs of the same kind, on repeated random sequences and on addresses; and as many others of
the same layers.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import controls, repeats, windows
from experiments.shared import SOURCES, Reader, experiment, first_layers, stored
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.specialization.synthetic import copied_positions

SEEDS = "sequences: 11, 12 to close heads, 13 for means; controls: 1"
INPUTS = (*SOURCES, "heads.json")


# batch: sequences of a seed, and windows read at a time.
Sizes = fields(layers=30, batch=8, batches=2, period=50, draws=6)
QUICK = Sizes(2, 2, 1, 6, 1)


class Reading(NamedTuple):
    losses: jax.Array  # ``(B, T - 1)``
    outputs: jax.Array  # ``(L, N, C)``, means over batch and positions


def sequences(config: Any, seed: int, sizes: Sizes) -> jax.Array:
    """Return repeated random sequences, ``(B, T)``; token 0 begins each."""
    return repeats(config, jax.random.key(seed), sizes.batch, sizes.period)


class Bench(Reader):
    def __init__(self, model: Any, sizes: Sizes) -> None:
        super().__init__(model)
        self.sizes, self.length = sizes, 2 * sizes.period + 1
        self.repeats = [sequences(self.config, 11 + n, sizes) for n in range(sizes.batches)]

    def texts(self) -> list[jax.Array]:
        rows = windows(self.model, "validation", self.sizes.batch * self.sizes.batches, self.length)
        return [rows[n :: self.sizes.batches] for n in range(self.sizes.batches)]

    def read(self, ids: jax.Array, heads: Any = (), means: Any = None) -> Reading:
        """Read with heads closed, which add 0 instead, or their means ``(L, N, C)``."""
        others = None if means is None else means[:, None, :, None]
        logits, kept = self.run(ids, heads, others)
        losses = next_token_losses(logits[:, :-1], ids)
        return Reading(losses, kept["heads"].mean((1, 3)))

    def copied(self, run: Reading, ids: jax.Array) -> np.ndarray:
        """The loss of each sequence on what can be copied."""
        where = np.asarray(copied_positions(ids, self.sizes.period))[:, 1:]
        return np.array(
            [row[on].mean() for row, on in zip(np.asarray(run.losses), where, strict=True)]
        )

    def losses(self, heads: Any, means: dict[str, Any] | None, texts: Any) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"copied": [], "first copy": [], "text": []}
        for ids in self.repeats:
            run = self.read(ids, heads, means and means["repeats"])
            found["copied"] += self.copied(run, ids).tolist()
            found["first copy"] += run.losses[:, : self.sizes.period - 1].mean(-1).tolist()
        for ids in texts:
            run = self.read(ids, heads, means and means["text"])
            found["text"] += run.losses.mean(-1).tolist()
        return found


@experiment("heads-in-use.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Any, sizes: Any) -> dict[str, Any]:
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    told = [[1, 0], [1, 3]] if run.quick else stored("heads.json")["induction"]["top"]
    bench, top = Bench(model, sizes), np.array(told)
    of_training = windows(model, "train", sizes.batch, bench.length)
    means = {
        "repeats": bench.read(sequences(model.config, 13, sizes)).outputs,
        "text": bench.read(of_training).outputs,
    }
    texts, others = bench.texts(), controls(top, bench.shape, sizes.draws, seed=1)

    def closed(name: str, heads: Any, by: Any = None) -> Any:
        return run.once(name, [sizes, told], lambda: bench.losses(heads, by, texts), 6)

    return {
        "top": top,
        "controls": others,
        "closed": {
            "whole": closed("whole", ()),
            "zero": closed("zero", top),
            "mean": closed("mean", top, means),
            "zero controls": [closed(f"zero {n}", x) for n, x in enumerate(others)],
            "mean controls": [closed(f"mean {n}", x, means) for n, x in enumerate(others)],
        },
        "processor seconds": run.seconds(),
    }
