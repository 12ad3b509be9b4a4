"""The real models of book/data/models.json: formulas against what is built and compiled."""

import json
import math
from pathlib import Path

import pytest

from mha_book.costs import attention_size, latent_size

DATA = json.loads(
    (Path(__file__).parents[2] / "book" / "data" / "models.json").read_text(encoding="utf-8")
)
MODELS = {model["name"]: model for model in DATA["models"]}
BUILT = [name for name, model in MODELS.items() if model["attention_parameters"]]
BESIDE = ("norm", "LayerNorm", "sinks", "relative_attention_bias")  # no projections


def size_of(m):
    if m["latent"]:
        return latent_size(m["d_model"], m["num_heads"], **m["latent"], is_absorbed=False)
    biases = {"has_input_biases": m["input_biases"], "has_output_bias": m["output_bias"]}
    shape = (m[name] for name in ("d_model", "num_heads", "num_kv_heads", "head_dim"))
    return attention_size(*shape, **biases)


def test_windows_as_published_and_as_the_library_has_them():
    kinds = {"Mistral 7B": "W" * 32, "Gemma 2 27B": "WF" * 23, "Gemma 3 1B": ("WWWWWF" * 5)[:26],
             "gpt-oss-120b": "WF" * 18}  # fmt: skip
    assert {w["name"] for w in DATA["windows"]} == {*kinds}
    for row in DATA["windows"]:
        pattern = kinds[row["name"]]
        assert len(pattern) == MODELS[row["name"]]["num_layers"]
        assert row["windowed_layers"] == pattern.count("W")
        assert row["library_default"]["windowed_layers"] == row["windowed_layers"]
        same = row["library_default"]["window"] == row["window"]
        assert same == (row["name"] != "Gemma 3 1B")  # the class has the window of larger ones


def test_every_source_is_in_the_bibliography():
    entries = (Path(__file__).parents[2] / "book" / "references.bib").read_text(encoding="utf-8")
    sources = {row["source"] for row in (*MODELS.values(), *DATA["windows"])}
    missing = {source for source in sources if f"{{{source}," not in entries}
    assert missing == set()


@pytest.mark.parametrize("name", BUILT)
def test_parameters_that_transformers_builds(name):
    shapes = MODELS[name]["attention_parameters"]
    counted = sum(
        math.prod(shape) for key, shape in shapes.items() if not any(b in key for b in BESIDE)
    )
    assert size_of(MODELS[name]).parameter_count == counted


@pytest.mark.slow
@pytest.mark.needs_torch
def test_the_file_is_what_the_script_writes():
    transformers = pytest.importorskip("transformers")
    from tests.scripts import regenerate_model_configs as script

    made = DATA["provenance"]["packages"]["transformers"]
    if transformers.__version__ != made:
        pytest.skip(f"the file was made with transformers {made}")
    for model in MODELS.values():
        if model["kind"] in ("bert", "t5", "llama"):  # the others take longer to build
            config, differs = script.published(model)
            assert differs == model["differs"]
            assert script.attention_parameters(config) == model["attention_parameters"]
