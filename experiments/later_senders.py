"""Which heads the induction heads of layers 20 and 23 of SmolLM2 build on.

The experiment on heads in use closes routes from heads before layer 17 alone. By the composition
score three of the eight induction heads have their best partner later: head 3 of layer 19 and head
1 of layer 22. Here these two are closed, altogether and by one route at a time, alone, together and
together with head 0 of layer 16; and four other heads of their layers by the keys.
"""

from typing import Any

import numpy as np

from benchmarks.harness.fields import fields
from experiments import heads_in_use
from experiments.heads_in_use import ROUTES, Bench, routes_from, sequences
from experiments.shared import SOURCES, Run, experiment, first_layers, stored
from mha_book.models import smollm2

SEEDS = "sequences: 11, means: 13, controls: 5"
INPUTS = (*SOURCES, "heads.json")


# of: the sizes of the experiment on heads in use; first: the head that serves all eight; later:
# the best partners of the others; receivers: the induction heads that have these partners;
# controls: other heads of each layer of ``later``.
Sizes = fields(
    of=heads_in_use.Sizes(), first=(16, 0), later=((19, 3), (22, 1)),
    receivers=((20, 6), (23, 2), (23, 7)), controls=2,
)  # fmt: skip
QUICK = Sizes(heads_in_use.Sizes(3, 2, 1, 6, 1, 1, 1), (0, 0), ((1, 1),), ((2, 2),), 1)


def sets(sizes: Sizes) -> dict[str, list[tuple[int, int]]]:
    found = {f"{layer}.{head}": [(layer, head)] for layer, head in sizes.later}
    found["later"] = [*sizes.later]
    found["first and later"] = [sizes.first, *sizes.later]
    return found


def controls(sizes: Sizes, num_heads: int) -> list[tuple[int, int]]:
    draw, found = np.random.default_rng(5), []
    for layer, head in sizes.later:
        free = np.setdiff1d(np.arange(num_heads), [head])
        found += [(layer, int(h)) for h in draw.choice(free, sizes.controls, replace=False)]
    return found


@experiment("later-senders.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    model = first_layers(smollm2.load_smollm2(), sizes.of.layers)
    top = sizes.receivers if run.quick else stored("heads.json")["induction"]["top"]
    bench = Bench(model, np.array(top), sizes.of)
    means = bench.plain(sequences(model.config, 13, sizes.of)).outputs
    whole, ids = bench.plain(bench.repeats[0]), bench.repeats[0]
    others = controls(sizes, model.config.num_heads)
    return {
        "top": top,
        "receivers": sizes.receivers,
        "controls": others,
        "whole": {"scores": bench.of_top(whole), "copied": bench.copied(whole, ids)},
        "senders": {
            name: routes_from(bench, heads, means, ROUTES) for name, heads in sets(sizes).items()
        },
        "of controls": [routes_from(bench, [head], means, ("keys",)) for head in others],
        "processor seconds": run.seconds(),
    }
