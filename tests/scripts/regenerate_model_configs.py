"""Compute again what transformers makes of the public models of book/data/models.json.

Run from the root of the repository where torch and transformers are installed (`make peers`):

    python -m tests.scripts.regenerate_model_configs

The published sizes, each with its source, are those of the file itself: a new model is a new row
there. For every model that transformers knows, the configuration is its class's default with the
fields that differ set to the published values; the file names those fields with both values. The
parameters of one attention layer are those of the module that transformers builds from that
configuration, on the meta device. Nothing here uses mha_book's own formulas.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from tests.scripts import store

DESTINATION = Path(__file__).parents[2] / "book" / "data" / "models.json"
NAMES = {  # what configurations call a size; the first that is there counts
    "d_model": ("hidden_size", "d_model", "n_embd"),
    "num_heads": ("num_attention_heads", "num_heads", "n_head", "encoder_attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "num_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "hidden_dim": ("intermediate_size", "d_ff", "n_inner", "ffn_dim", "ffn_hidden_size"),
}


def value_of(config: Any, size: str) -> Any:
    """The value that a configuration gives a size, or None."""
    for name in NAMES[size]:
        with contextlib.suppress(Exception):  # a size that differs between layers raises
            value = getattr(config, name, None)
            if value is not None:
                return value
    return None


def field_of(config: Any, size: str) -> str | None:
    for name in NAMES[size]:
        if name in config.to_dict():
            return name
    return None


def published(model: dict[str, Any]) -> tuple[Any, dict[str, list[Any]]]:
    """The configuration of a model, and the fields whose default is another."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[model["kind"]]()
    wanted: dict[str, Any] = {}
    for size in NAMES:
        field = field_of(default, size)
        if field is not None:
            wanted[field] = model[size]
    if model["kind"] in ("falcon", "deepseek_v3"):  # what they call so is another thing
        wanted.pop("num_kv_heads", None)
        wanted.pop("head_dim", None)
    if model["kind"] == "falcon":
        wanted.pop("ffn_hidden_size", None)
    differs = {}
    for field, value in wanted.items():
        old = getattr(default, field)
        if old is None and value == implied(default, model["kind"], field):
            continue
        if old != value:
            differs[field] = [old, value]
    changes = {field: pair[1] for field, pair in differs.items()}
    return CONFIG_MAPPING[model["kind"]](**changes), differs


def implied(config: Any, kind: str | None, field: str) -> Any:
    """What a field that is None stands for, by the code of the model."""
    if field == "n_inner":
        return 4 * config.n_embd
    if field == "num_key_value_heads":
        return value_of(config, "num_heads")
    if field == "head_dim":
        return value_of(config, "d_model") // value_of(config, "num_heads")
    return None


def attention_parameters(config: Any) -> dict[str, list[int]]:
    """Name -> shape of the parameters of the first attention layer that the library builds."""
    import torch
    from transformers import AutoModel

    config = type(config)(**(config.to_dict()))
    for name in NAMES["num_layers"]:
        if name in config.to_dict():
            setattr(config, name, min(2, getattr(config, name)))
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * 2
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    for _, module in model.named_modules():
        shapes = {name: list(p.shape) for name, p in module.named_parameters()}
        if type(module).__name__.endswith("Attention") and shapes:
            return shapes
    raise LookupError(f"{type(model).__name__} has no attention layer with parameters")


def window_of(given: dict[str, Any], models: list[dict[str, Any]]) -> dict[str, Any]:
    """A window as published, beside what the class in transformers has for so many layers."""
    from transformers import CONFIG_MAPPING

    model = next(model for model in models if model["name"] == given["name"])
    config = CONFIG_MAPPING[model["kind"]](num_hidden_layers=model["num_layers"])
    kinds = getattr(config, "layer_types", None)  # None: the class has one window for all layers
    count = model["num_layers"] if kinds is None else kinds.count("sliding_attention")
    library = {"window": config.sliding_window, "windowed_layers": count}
    return {**given, "library_default": library}


def sweep() -> list[dict[str, Any]]:
    """Width, heads and width of a head in the default of every class of the library."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    rows = []
    for kind in sorted(CONFIG_MAPPING_NAMES):
        try:
            config = CONFIG_MAPPING[kind]()
        except Exception:
            continue
        d_model, num_heads = (value_of(config, size) for size in ("d_model", "num_heads"))
        if not isinstance(d_model, int) or not isinstance(num_heads, int):
            continue
        head_dim = value_of(config, "head_dim")
        if value_of(config, "num_layers") is None or getattr(config, "kv_lora_rank", None):
            continue
        head_dim = head_dim if isinstance(head_dim, int) else d_model // num_heads
        rows.append(
            {"kind": kind, "d_model": d_model, "num_heads": num_heads, "head_dim": head_dim}
        )
    return rows


def newest(kind: str) -> dict[str, Any]:
    """The sizes that the default of a class gives."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]()
    sizes = {size: value_of(config, size) for size in NAMES if size != "hidden_dim"}
    if sizes["head_dim"] is None:
        layers = getattr(config, "per_layer_config", None)
        sizes["head_dim"] = getattr(layers[0], "head_dim", None) if layers else None
    if sizes["head_dim"] is None:
        sizes["head_dim"] = sizes["d_model"] // sizes["num_heads"]
    return {"kind": kind, "class": type(config).__name__, **sizes}


def compute(told: dict[str, Any]) -> dict[str, Any]:
    """Everything in the file but where it comes from."""
    rows = []
    for model in told["models"]:
        row = {**model, "class": None, "differs": None, "attention_parameters": None}
        if model["kind"] is not None:
            config, row["differs"] = published(model)
            row["class"] = type(config).__name__
            row["attention_parameters"] = attention_parameters(config)
        rows.append(row)
    return {
        "models": rows,
        "windows": [window_of(window, told["models"]) for window in told["windows"]],
        "newest": [newest(row["kind"]) for row in told["newest"]],
        "defaults": sweep(),
    }


if __name__ == "__main__":
    told = json.loads(DESTINATION.read_text())
    store(DESTINATION, "tests.scripts.regenerate_model_configs", "nothing is drawn", compute(told))
