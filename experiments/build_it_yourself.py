"""What each idea of the chapter *Build it yourself* buys, in nats a character.

The code is the chapter's own: the cells that a reader types, but for those that train. Its models
are trained for the same number of steps, some seeds each, and write a line. What was expected
stands in experiments/expected/build-it-yourself.md.
"""

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.shared import ROOT, Run, experiment

SEEDS = "weights and batches: 0, 1, …; held-out windows: 1; the lines that are written: 0"
PROMPT, TEMPERATURE = "The people ", 0.7


class Sizes(NamedTuple):
    steps: int = 800
    seeds: int = 3
    characters: int = 48


QUICK = Sizes(steps=2, seeds=1, characters=3)


@contextlib.contextmanager
def as_readers_have_it() -> Iterator[None]:
    """JAX's own defaults, which the tests make stricter."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def typed(with_training: bool = True) -> str:
    """Return the code of the chapter as a reader pastes it: its open cells, in order."""
    path = ROOT / "book" / "build-it-yourself.ipynb"
    sources = []
    for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        is_open = cell["cell_type"] == "code" and not tags  # else folded, removed, or an exercise
        if is_open and (with_training or not cell["id"].startswith("run-")):
            sources.append("".join(cell["source"]))
    return "\n\n\n".join(sources) + "\n"


def models(code: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each model of the chapter: a name, the function, and what draws weights by a seed."""
    init, small = code["init"], code["small_model"]
    for name, attention in (
        ("one head", "one_head"), ("four heads", "multi_head"), ("RoPE", "rotary_heads"),
    ):  # fmt: skip
        yield name, partial(small, attention=code[attention]), code["init_small"]
    whole = partial(code["transformer"], attention=code["rotary_heads"])
    yield "one block", whole, partial(init, num_blocks=1)
    yield "three blocks", whole, partial(init, num_blocks=3)
    grouped = partial(code["transformer"], attention=code["grouped_heads"])
    yield "GQA", grouped, partial(init, num_blocks=3, kv_width=code["K"] * code["H"])


def written(code: dict[str, Any], logits: Any, count: int) -> str:
    """Return characters that a model writes behind :data:`PROMPT`; it sees the last ones alone."""
    ids, rng = list(code["encode"](PROMPT)), np.random.default_rng(0)
    for _ in range(count):
        seen = ids[-code["CONTEXT"] :]
        padded = np.array([seen + [0] * (code["CONTEXT"] - len(seen))])
        row = np.asarray(logits(padded)[0, len(seen) - 1], np.float64) / TEMPERATURE
        p = np.exp(row - row.max())
        ids.append(int(rng.choice(len(p), p=p / p.sum())))
    return str(code["decode"](ids))


@experiment("build-it-yourself.json", Sizes(), QUICK, digits=6, seeds=SEEDS, inputs=("sotu",))
def main(run: Run, sizes: Any) -> dict[str, Any]:
    with as_readers_have_it():
        code: dict[str, Any] = {}
        exec(typed(with_training=False), code)
        log_p = np.log(code["p_next"])
        found = {
            "counted pairs": {
                "loss": [code["bigram_loss"]],
                "text": written(code, lambda ids: log_p[ids], sizes.characters),
            }
        }
        for name, model, init in models(code):
            trained = [code["train"](model, init(n), sizes.steps, n) for n in range(sizes.seeds)]
            found[name] = {
                "loss": [code["held_out_loss"](model, params) for params in trained],
                "text": written(code, jax.jit(partial(model, trained[0])), sizes.characters),
            }
            run.report(f"{name}: {found[name]['loss']}")
    return {"models": found}
