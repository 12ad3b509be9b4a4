"""What sharing keys and values among heads costs in loss, trained from scratch and converted.

Trains a tiny transformer with a key/value head for each query head, and with fewer: as wide as the
first, and with what the keys and values saved given to the feed-forward part. Then takes the
trained multi-head models, gives each layer fewer key/value heads in every way that
mha_book.multihead.grouped has, and trains on for a tenth of the steps.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.shared import Run, change_attention, experiment
from experiments.sharing_training import Sizes, Study
from mha_book.models import tiny
from mha_book.multihead.grouped import (
    fit_groups,
    mean_pool_groups,
    reinitialize_groups,
    select_from_groups,
)
from mha_book.multihead.parameters import MultiHeadParams

SEEDS = "models and batches: 0 to 4"
INPUTS = ("sotu",)
FULL = "multi-head"
CONVERSIONS: dict[str, Callable[..., MultiHeadParams]] = {
    "fit": lambda attention, heads, key: fit_groups(attention, heads),
    "fit values": lambda attention, heads, key: fit_values(attention, heads),
    "mean": lambda attention, heads, key: mean_pool_groups(attention, heads),
    "pick": lambda attention, heads, key: select_from_groups(attention, heads),
    "redraw": lambda attention, heads, key: reinitialize_groups(key, attention, heads),
}
QUICK = Sizes(2, 3, 2, 8, 8, 1, 4, (2,), uptraining=(1, 2), windows=2)


def fit_values(attention: MultiHeadParams, heads: int) -> MultiHeadParams:
    """Fit the values of each group and average its keys, whose fit rotary positions do not keep."""
    fitted = fit_groups(attention, heads)
    return mean_pool_groups(attention, heads)._replace(w_v=fitted.w_v, w_o=fitted.w_o)


def variants(base: tiny.TinyConfig, shared: tuple[int, ...]) -> dict[str, tiny.TinyConfig]:
    found = {FULL: base}
    for heads in shared:
        narrow = dataclasses.replace(base, num_kv_heads=heads)
        saved = (parameter_count(base) - parameter_count(narrow)) / base.num_layers
        hidden = 4 * base.d_model if base.d_hidden is None else base.d_hidden
        hidden += round(saved / (2 * base.d_model + 1))  # a column, a bias, a row
        found[f"{heads}, width"] = narrow
        found[f"{heads}, parameters"] = dataclasses.replace(narrow, d_hidden=hidden)
    return found


def parameter_count(config: tiny.TinyConfig) -> int:
    shapes = jax.eval_shape(lambda: tiny.init_tiny(jax.random.key(0), config))
    return sum(x.size for x in jax.tree.leaves(shapes))


def convert_all(params, rng_keys, heads) -> dict[str, tiny.TinyParams]:
    """Give the layers of the model of every seed ``heads`` key/value heads, in every way.

    Not compiled as one program: on few cores jaxlib can wait for ever where such a program has
    several decompositions of stacked matrices that do not need each other.
    """

    def one(params: tiny.TinyParams, rng_key: jax.Array) -> dict[str, tiny.TinyParams]:
        keys = jax.random.split(rng_key, len(params.layers))
        return {
            way: change_attention(params, lambda layer, i, f=change: f(layer, heads, keys[i]))
            for way, change in CONVERSIONS.items()
        }

    return jax.vmap(one)(params, rng_keys)


def from_scratch(study, configs) -> tuple[dict[str, tiny.TinyParams], dict[str, Any]]:
    sizes, models, found = study.sizes, {}, {}
    stops = tuple(sorted({max(sizes.steps * part // 8, 1) for part in range(1, 9)}))
    for name, config in configs.items():
        params, curve = study.fit(config, None, stops, sizes.learning_rate, f"scratch {name}")
        heads = config.num_kv_heads or config.num_heads
        models[name] = params
        found[name] = {
            "num_kv_heads": heads, "parameters": parameter_count(config),
            "last": curve["losses"][:, -1], **curve,
        }  # fmt: skip
        say(name, curve["losses"])
    return models, found


def converted(study, configs, models, heads) -> dict[str, Any]:
    """Convert the multi-head models to ``heads`` key/value heads and train them on."""
    name, sizes = f"{heads}, width", study.sizes
    curves = {}
    starts = convert_all(models[FULL], study.keys, heads)
    for way in CONVERSIONS:
        curves[way] = study.uptrain(configs[name], starts[way], f"on {heads} {way}")
    curves["trained so"] = study.uptrain(configs[name], models[name], f"on {name}")
    recipe = (sizes.uptraining, sizes.learning_rate, f"fresh {heads}")
    curves["fresh"] = study.fit(configs[name], None, *recipe)[1]
    for way, curve in curves.items():
        say(f"{heads} heads, {way}", curve["losses"])
    return {
        "steps": curves["fresh"]["steps"],
        **{way: curve["losses"] for way, curve in curves.items()},
    }


def say(name: str, losses: np.ndarray) -> None:
    print(f"{name}: {' '.join(f'{loss:.4f}' for loss in losses.mean(axis=0))}", flush=True)


@experiment("sharing.json", Sizes(), QUICK, digits=7, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    study = Study(sizes, run.work)
    configs = variants(study.base, sizes.shared)
    if run.quick:
        configs = {name: config for name, config in configs.items() if "parameters" not in name}
    models, scratch = from_scratch(study, configs)
    curve = study.uptrain(study.base, models[FULL], f"on {FULL}")
    say(f"{FULL}, trained on", curve["losses"])
    conversion = {FULL: {"steps": curve["steps"], FULL: curve["losses"]}}
    for heads in sizes.shared:
        conversion[str(heads)] = converted(study, configs, models, heads)
    model = dataclasses.asdict(study.base)
    return {"model": model, "scratch": scratch, "conversion": conversion}
