"""Compute book/data/models.json: the sizes of public models, and what transformers makes of them.

Run from the root of the repository where torch and transformers are installed (`make peers`):

    python -m tests.scripts.regenerate_model_configs

The sizes in MODELS are the published ones, each with its source. For every model that transformers
knows, the configuration is its class's default with the fields that differ set to the published
values; the file names those fields with both values. The parameters of one attention layer are
those of the module that transformers builds from that configuration, on the meta device, so that
no memory is needed. The sizes use nothing of mha_book: what is compared cannot share its mistakes.
"""

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.provenance import record
from mha_book.storage import seal

DESTINATION = Path(__file__).parents[2] / "book" / "data" / "models.json"
COMMAND = "python -m tests.scripts.regenerate_model_configs"
NAMES = {  # what configurations call a size; the first that is there counts
    "d_model": ("hidden_size", "d_model", "n_embd"),
    "num_heads": ("num_attention_heads", "num_heads", "n_head", "encoder_attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "num_layers": ("num_hidden_layers", "num_layers", "n_layer"),
    "hidden_dim": ("intermediate_size", "d_ff", "n_inner", "ffn_dim", "ffn_hidden_size"),
}


class Model(NamedTuple):
    """A published model: widths D, N, K, H, layers, what is special, and where it is written."""

    name: str
    kind: str | None  # the model type in transformers, None where it has none
    year: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    hidden_dim: int
    is_gated: bool
    source: str  # a key of references.bib, or the name of the configuration class
    where: str
    input_biases: bool = False
    output_bias: bool = False
    latent: dict[str, int] | None = None


BOTH = {"input_biases": True, "output_bias": True}  # all four projections have biases


# fmt: off
MODELS = (
    Model("Transformer base", None, 2017, 512, 8, 8, 64, 6, 2048, False,
          "vaswani2017attention", "Table 3"),
    Model("BERT-base", "bert", 2018, 768, 12, 12, 64, 12, 3072, False,
          "devlin2019bert", "Section 3", **BOTH),
    Model("BERT-large", "bert", 2018, 1024, 16, 16, 64, 24, 4096, False,
          "devlin2019bert", "Section 3", **BOTH),
    Model("GPT-2 small", "gpt2", 2019, 768, 12, 12, 64, 12, 3072, False,
          "radford2019language", "Table 2; heads in the released hyperparameters", **BOTH),
    Model("GPT-2 medium", "gpt2", 2019, 1024, 16, 16, 64, 24, 4096, False,
          "radford2019language", "Table 2; heads in the released hyperparameters", **BOTH),
    Model("GPT-2 large", "gpt2", 2019, 1280, 20, 20, 64, 36, 5120, False,
          "radford2019language", "Table 2; heads in the released hyperparameters", **BOTH),
    Model("GPT-2 XL", "gpt2", 2019, 1600, 25, 25, 64, 48, 6400, False,
          "radford2019language", "Table 2; heads in the released hyperparameters", **BOTH),
    Model("T5-small", "t5", 2019, 512, 8, 8, 64, 6, 2048, False,
          "raffel2020exploring", "Section 3.7"),
    Model("T5-base", "t5", 2019, 768, 12, 12, 64, 12, 3072, False,
          "raffel2020exploring", "Section 3.1.2"),
    Model("T5-large", "t5", 2019, 1024, 16, 16, 64, 24, 4096, False,
          "raffel2020exploring", "Section 3.7"),
    Model("T5-3B", "t5", 2019, 1024, 32, 32, 128, 24, 16384, False,
          "raffel2020exploring", "Section 3.7"),
    Model("T5-11B", "t5", 2019, 1024, 128, 128, 128, 24, 65536, False,
          "raffel2020exploring", "Section 3.7"),
    Model("MiniLM-L6", "bert", 2020, 384, 12, 12, 32, 6, 1536, False,
          "wang2020minilm", "the weights that this book loads", **BOTH),
    Model("GPT-3 125M", None, 2020, 768, 12, 12, 64, 12, 3072, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 350M", None, 2020, 1024, 16, 16, 64, 24, 4096, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 760M", None, 2020, 1536, 16, 16, 96, 24, 6144, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 1.3B", None, 2020, 2048, 24, 24, 128, 24, 8192, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 2.7B", None, 2020, 2560, 32, 32, 80, 32, 10240, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 6.7B", None, 2020, 4096, 32, 32, 128, 32, 16384, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 13B", None, 2020, 5140, 40, 40, 128, 40, 20560, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-3 175B", None, 2020, 12288, 96, 96, 128, 96, 49152, False,
          "brown2020language", "Table 2.1", **BOTH),
    Model("GPT-J 6B", "gptj", 2021, 4096, 16, 16, 256, 28, 16384, False,
          "wang2021gptj", "model description"),
    Model("GPT-NeoX 20B", "gpt_neox", 2022, 6144, 64, 64, 96, 44, 24576, False,
          "black2022neox", "Section 2", **BOTH),
    Model("PaLM 540B", None, 2022, 18432, 48, 1, 256, 118, 73728, True,
          "chowdhery2023palm", "Table 1 and Section 2"),
    Model("BLOOM 176B", "bloom", 2022, 14336, 112, 112, 128, 70, 57344, False,
          "workshop2022bloom", "Table 3", **BOTH),
    Model("Falcon 7B", "falcon", 2023, 4544, 71, 1, 64, 32, 18176, False,
          "almazrouei2023falcon", "model sizes"),
    Model("Llama 7B", "llama", 2023, 4096, 32, 32, 128, 32, 11008, True,
          "touvron2023llama", "Table 2"),
    Model("Llama 13B", "llama", 2023, 5120, 40, 40, 128, 40, 13824, True,
          "touvron2023llama", "Table 2"),
    Model("Llama 65B", "llama", 2023, 8192, 64, 64, 128, 80, 22016, True,
          "touvron2023llama", "Table 2"),
    Model("Llama 2 7B", "llama", 2023, 4096, 32, 32, 128, 32, 11008, True,
          "touvron2023llama2", "Section 2.2 and the released configuration"),
    Model("Llama 2 13B", "llama", 2023, 5120, 40, 40, 128, 40, 13824, True,
          "touvron2023llama2", "Section 2.2 and the released configuration"),
    Model("Llama 2 70B", "llama", 2023, 8192, 64, 8, 128, 80, 28672, True,
          "touvron2023llama2", "Section 2.2 and the released configuration"),
    Model("Mistral 7B", "mistral", 2023, 4096, 32, 8, 128, 32, 14336, True,
          "jiang2023mistral", "Table 1"),
    Model("Phi-2", "phi", 2023, 2560, 32, 32, 80, 32, 10240, False,
          "javaheripi2023phi2", "released configuration", **BOTH),
    Model("Gemma 2B", "gemma", 2024, 2048, 8, 1, 256, 18, 16384, True,
          "gemma2024", "Table 1"),
    Model("Gemma 7B", "gemma", 2024, 3072, 16, 16, 256, 28, 24576, True,
          "gemma2024", "Table 1"),
    Model("Phi-3-mini", "phi3", 2024, 3072, 32, 32, 96, 32, 8192, True,
          "abdin2024phi3", "Section 2"),
    Model("Llama 3 8B", "llama", 2024, 4096, 32, 8, 128, 32, 14336, True,
          "grattafiori2024llama3", "Table 3"),
    Model("Qwen2 7B", "qwen2", 2024, 3584, 28, 4, 128, 28, 18944, True,
          "yang2024qwen2", "Table 1", input_biases=True),
    Model("Gemma 2 27B", "gemma2", 2024, 4608, 32, 16, 128, 46, 36864, True,
          "gemma2024gemma2", "Table 1"),
    Model("SmolLM2 135M", "llama", 2025, 576, 9, 3, 64, 30, 1536, True,
          "allal2025smollm2", "the weights that this book loads"),
    Model("DeepSeek-V3", "deepseek_v3", 2024, 7168, 128, 128, 192, 61, 18432, True,
          "deepseek2024v3", "Section 4.2",
          latent={"latent_dim": 512, "head_dim": 128, "rotary_dim": 64, "value_dim": 128,
                  "query_latent_dim": 1536}),
    Model("Gemma 3 1B", "gemma3_text", 2025, 1152, 4, 1, 256, 26, 6912, True,
          "gemma2025gemma3", "released configuration"),
    Model("Qwen3 0.6B", "qwen3", 2025, 1024, 16, 8, 128, 28, 3072, True,
          "yang2025qwen3", "Table 1 and the released configuration"),
    Model("Qwen3 8B", "qwen3", 2025, 4096, 32, 8, 128, 36, 12288, True,
          "yang2025qwen3", "Table 1 and the released configuration"),
    Model("gpt-oss-120b", "gpt_oss", 2025, 2880, 64, 8, 64, 36, 2880, True,
          "openai2025gptoss", "Section 2", **BOTH),
)
# fmt: on


class Window(NamedTuple):
    """A model some of whose layers see the last positions alone; others are not looked up."""

    name: str
    window: int  # positions that such a layer sees, its own included
    windowed_layers: int
    source: str  # a key of references.bib
    where: str


# fmt: off
WINDOWS = (
    Window("Mistral 7B", 4096, 32, "jiang2023mistral", "Table 1: every layer"),
    Window("Gemma 2 27B", 4096, 23, "gemma2024gemma2",
           "Section 2 and google/gemma_pytorch, gemma/config.py: every second layer"),
    Window("Gemma 3 1B", 512, 22, "gemma2025gemma3",
           "google/gemma_pytorch, gemma/config.py: five layers with a window, then one without"),
    Window("gpt-oss-120b", 128, 18, "openai2025gptoss",
           "Section 2 and openai/gpt-oss, gpt_oss/torch/model.py: every second layer"),
)
# fmt: on
# Newer architectures, as the library has them: the class's default stands for itself.
NEWEST = (
    "smollm3",
    "minimax_m2",
    "llama4_text",
    "gemma4_text",
    "qwen3_next",
    "qwen3_5_text",
    "ernie4_5",
    "kimi_linear",
    "mistral4",
    "deepseek_v4",
)


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


def published(model: Model) -> tuple[Any, dict[str, list[Any]]]:
    """The configuration of a model, and the fields whose default is another."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[model.kind]()
    wanted: dict[str, Any] = {}
    for size in NAMES:
        field = field_of(default, size)
        if field is not None:
            wanted[field] = getattr(model, size)
    if model.kind in ("falcon", "deepseek_v3"):  # what they call so is another thing
        wanted.pop("num_kv_heads", None)
        wanted.pop("head_dim", None)
    if model.kind == "falcon":
        wanted.pop("ffn_hidden_size", None)
    differs = {}
    for field, value in wanted.items():
        old = getattr(default, field)
        if old is None and value == implied(default, model.kind, field):
            continue
        if old != value:
            differs[field] = [old, value]
    changes = {field: pair[1] for field, pair in differs.items()}
    return CONFIG_MAPPING[model.kind](**changes), differs


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


def window_of(given: Window) -> dict[str, Any]:
    """A window as published, beside what the class in transformers has for so many layers."""
    from transformers import CONFIG_MAPPING

    model = next(model for model in MODELS if model.name == given.name)
    config = CONFIG_MAPPING[model.kind](num_hidden_layers=model.num_layers)
    kinds = getattr(config, "layer_types", None)  # None: the class has one window for all layers
    count = model.num_layers if kinds is None else kinds.count("sliding_attention")
    library = {"window": config.sliding_window, "windowed_layers": count}
    return {**given._asdict(), "library_default": library}


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


def compute() -> dict[str, Any]:
    """Everything in the file but where it comes from."""
    rows = []
    for model in MODELS:
        row: dict[str, Any] = model._asdict()
        row["class"] = row["differs"] = row["attention_parameters"] = None
        if model.kind is not None:
            config, row["differs"] = published(model)
            row["class"] = type(config).__name__
            row["attention_parameters"] = attention_parameters(config)
        rows.append(row)
    return {
        "models": rows,
        "windows": [window_of(window) for window in WINDOWS],
        "newest": [newest(kind) for kind in NEWEST],
        "defaults": sweep(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DESTINATION)
    output = parser.parse_args().output
    import torch
    import transformers

    transformers.logging.set_verbosity_error()

    provenance = {
        **record("nothing is drawn"),
        "command": COMMAND,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "packages": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    content = seal({"provenance": provenance, **compute()})
    output.write_text(text_of(content), encoding="utf-8")


def text_of(content: dict[str, Any]) -> str:
    """JSON with one line for each row of a table."""
    parts = []
    for name, value in content.items():
        rows = (
            [json.dumps(row, ensure_ascii=False) for row in value] if name != "provenance" else []
        )
        body = "[\n  " + ",\n  ".join(rows) + "\n ]" if rows else json.dumps(value)
        parts.append(f" {json.dumps(name)}: {body}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
