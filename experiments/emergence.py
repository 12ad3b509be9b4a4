"""How heads come to their roles, and how wide a head has to be.

Trains one layer of four heads, from many seeds, on sequences where one symbol is found by its place
and another by content, and follows what every head attends to. Then changes the start: other
batches, another start with the same batches, one head nudged towards a role.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from benchmarks.harness.fields import fields
from experiments.emergence_training import ROLES, measure, program
from experiments.head_rank import QUICK_RANKS, Ranks, rank_study
from experiments.shared import SOURCES, Run, change_attention, experiment, slug
from experiments.training import TrainResult, train
from mha_book.models import tiny
from mha_book.specialization.intervals import mean_interval
from mha_book.specialization.synthetic import ProbeTask, probe_sequences
from mha_book.storage import tree_arrays

SEEDS = (
    "models and batches: 0 to 15, others: 10000 to 10015; widths: 0 to 4; sequences: 2**20, "
    "2**20 + 1, nudges: 2**21"
)
INPUTS = tuple(SOURCES)


# every: steps between two looks at the heads; pool: sequences that batches are picked from;
# nudges: of the norm of a head's W_Q and W_K; kept: colours of the runs whose first models are
# stored, of one head, D = 64.
Sizes = fields(
    seeds=16, steps=250, every=5, batch=64, pool=2**15, evaluated=256, rate=2e-3, d_model=32,
    num_heads=4, nudges=(0.2,), width_seeds=5,
    width_steps=400, width_rate=3e-3,
    widths=((16, 64, 1, (2, 4, 8, 16, 32, 64, 128)), (64, 64, 1, (2, 4, 8, 16, 32, 64, 128)),
            (64, 32, 1, (4, 16, 64)), (64, 64, 4, (1, 4, 16))),
    kept=64,
)  # fmt: skip
QUICK = Sizes(
    2, 4, 2, 4, 16, 8, nudges=(0.1,), width_seeds=2, width_steps=2,
    widths=((16, 8, 1, (2,)),), kept=0,
)  # fmt: skip


def foretold(early: np.ndarray, final: np.ndarray) -> dict[str, Any]:
    """Return how far early role scores tell the final ones, ``(seeds, N, 2)`` each.

    For each role, and for the difference of the two (place minus content): the rank correlation
    over heads, mean over seeds, with the ends of its interval of 95%.
    """

    def both(scores: np.ndarray) -> np.ndarray:
        return np.concatenate([scores, scores[..., :1] - scores[..., 1:]], -1)

    one, other, found = both(early), both(final), {}
    for number, name in enumerate((*ROLES, "difference")):
        a, b = one[..., number], other[..., number]
        correlations = np.array(
            [spearmanr(x, y, axis=None).statistic for x, y in zip(a, b, strict=True)]
        )
        middle, half = mean_interval(correlations)
        found[name] = {"rank correlation": (middle, middle - half, middle + half)}
    return found


class SeedStudy:
    """The trainings from many seeds: all runs of one form share a program."""

    def __init__(self, sizes: Sizes, work: Path) -> None:
        self.sizes, self.work, self.task = sizes, work, ProbeTask()
        widths = (sizes.d_model, sizes.num_heads, sizes.d_model // sizes.num_heads)
        given = (sizes.rate, sizes.batch, sizes.pool, sizes.evaluated)
        self.program = program(self.task, *widths, *given)
        self.own, self.other = (
            jax.vmap(jax.random.key)(jnp.arange(sizes.seeds) + first) for first in (0, 10_000)
        )
        self.start = self.program.fresh(self.own)

    def run(self, name, params, data=None, often=False) -> TrainResult:
        s, used = self.sizes, self.program
        return train(
            used.step, used.start(params, self.own if data is None else data), s.steps,
            data=used.data, checkpoint=self.work / f"emergence-{slug(name)}.safetensors",
            evaluate=used.evaluate,
            evaluate_every=s.every if often else s.steps, config={"name": name, "sizes": s[:9]},
            name=name,
        )  # fmt: skip

    def nudged(self, role: int | None, strength: float) -> tiny.TinyParams:
        """Move W_Q and W_K of the first head by a part of their norm."""
        drawn = probe_sequences(jax.random.key(2**21), self.task, 4 * self.sizes.batch)
        config = self.program.config

        def score(params: tiny.TinyParams) -> jax.Array:
            return measure(params, config, self.task, drawn)["roles"][0, role]

        def one(params: tiny.TinyParams, key: jax.Array) -> tiny.TinyParams:
            attention = params.layers[0].attention

            def moved(pair: Any) -> tiny.TinyParams:
                w_q, w_k = (
                    w.at[:, 0].add(d)
                    for w, d in zip((attention.w_q, attention.w_k), pair, strict=True)
                )
                changed = attention._replace(w_q=w_q, w_k=w_k)
                return change_attention(params, lambda *_: changed)

            shape = attention.w_q[:, 0].shape
            if role is None:
                way = tuple(jax.random.normal(k, shape) for k in jax.random.split(key))
            else:
                zero = (jnp.zeros(shape), jnp.zeros(shape))
                way = jax.grad(lambda pair: score(moved(pair)))(zero)
            own = jnp.sqrt(sum(jnp.sum(w[:, 0] ** 2) for w in (attention.w_q, attention.w_k)))
            length = jnp.sqrt(sum(jnp.sum(w**2) for w in way))
            return moved(tuple(strength * own / length * w for w in way))

        return jax.jit(jax.vmap(one))(self.start, self.other)


def ends(trained: TrainResult) -> dict[str, Any]:
    """Return what is stored of a run: the measures before and after."""
    found = trained.evaluations
    return {
        "first roles": found["roles"][0], "last roles": found["roles"][-1],
        "last loss": found["loss"][-1], "last losses": found["losses"][-1],
    }  # fmt: skip


def seed_study(study: SeedStudy) -> tuple[dict[str, Any], tiny.TinyParams]:
    """Run all trainings of the seed study; return what is stored, and the first models."""
    s = study.sizes
    base = study.run("base", study.start, often=True)
    curve = base.evaluations
    roles = np.moveaxis(curve["roles"], 0, 1)  # (seeds, evaluations, N, 2)
    final = roles[:, -1]
    runs = {"base": ends(base)}
    runs["other data"] = ends(study.run("other data", study.start, study.other))
    runs["other start"] = ends(study.run("other start", study.program.fresh(study.other)))
    for strength in s.nudges:
        for number, role in ((0, ROLES[0]), (1, ROLES[1]), (None, "random")):
            name = f"nudge {role} {strength}"
            runs[name] = ends(study.run(name, study.nudged(number, strength)))
    found = {
        "steps": curve["step"],
        "roles": roles,
        "losses": np.moveaxis(curve["losses"], 0, 1),
        "foretold": {
            str(int(step)): foretold(roles[:, i], final) for i, step in enumerate(curve["step"])
        },
        "runs": runs,
        "of other data": foretold(runs["other data"]["last roles"], final),
        "of another start": foretold(runs["other start"]["last roles"], final),
    }
    return found, base.state.params


def width_study(sizes: Sizes, work: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    found, kept, s = {}, {}, sizes
    keys = jax.vmap(jax.random.key)(jnp.arange(s.width_seeds))
    for colors, d_model, num_heads, widths in s.widths:
        task = ProbeTask(colors, before=8, by_place=False)
        row: dict[str, Any] = {"widths": widths, "loss": []}
        for width in widths:
            name = f"width {colors} {d_model} {num_heads} {width}"
            sizes_of_heads = (num_heads, width, s.width_rate, s.batch, s.pool, s.evaluated)
            used = program(task, d_model, *sizes_of_heads, s.width_steps, 16 // num_heads)
            trained = train(
                used.step, used.start(used.fresh(keys), keys), s.width_steps, data=used.data,
                checkpoint=work / f"emergence-{slug(name)}.safetensors",
                evaluate=used.evaluate, evaluate_every=s.width_steps,
                config={"name": name, "steps": s.width_steps, "rate": s.width_rate, "pool": s.pool},
                name=name,
            )  # fmt: skip
            last = trained.evaluations
            row["loss"].append(last["loss"][-1])
            print(f"{name}: {last['loss'][-1].round(4)}", flush=True)
            if (colors, d_model, num_heads) == (s.kept, 64, 1):
                first = jax.tree.map(lambda leaf: leaf[0], trained.state.params)
                arrays = tree_arrays(first, f"width-{width}")
                kept |= {key: array.astype(np.float16) for key, array in arrays.items()}
        found[f"{colors} colours, width {d_model}, {num_heads} heads"] = row
    return found, kept


@experiment("emergence.json", Sizes(), QUICK, digits=4, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    study = SeedStudy(sizes, run.work)
    seeds, params = seed_study(study)
    run.report("seeds")
    widths, kept = width_study(sizes, run.work)
    run.report("widths")
    ranks = rank_study(QUICK_RANKS if run.quick else Ranks(), run)
    arrays = tree_arrays(params, "base") | kept
    run.save("emergence.safetensors", arrays, {"config": sizes._asdict()})
    return {"task": study.task._asdict(), "seeds": seeds, "widths": widths, "ranks": ranks}
