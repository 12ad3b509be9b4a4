"""The real models of book/data/models.json: formulas against what is built and compiled."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from mha_book.costs import (
    attention_size,
    compiled_matmul_flops,
    forward_matmul_flops,
    latent_size,
    traced_matmul_flops,
)
from mha_book.multihead.latent import absorbed_attention, compress, expanded_attention, init_latent
from mha_book.rope import rotary_angles

DATA = json.loads(
    (Path(__file__).parents[2] / "book" / "data" / "models.json").read_text(encoding="utf-8")
)
MODELS = {model["name"]: model for model in DATA["models"]}
BUILT = [name for name, model in MODELS.items() if model["attention_parameters"]]
BESIDE = ("norm", "LayerNorm", "sinks", "relative_attention_bias")  # no projections
LENGTH = 24


def size_of(name):
    m = MODELS[name]
    return attention_size(
        m["d_model"],
        m["num_heads"],
        m["num_kv_heads"],
        m["head_dim"],
        has_input_biases=m["input_biases"],
        has_output_bias=m["output_bias"],
    )


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
    if MODELS[name]["latent"]:
        size = latent_size(
            MODELS[name]["d_model"],
            MODELS[name]["num_heads"],
            **MODELS[name]["latent"],
            is_absorbed=False,
        )
    else:
        size = size_of(name)
    assert size.parameter_count == counted


@pytest.mark.parametrize("is_absorbed", [False, True])
def test_deepseek_v3(is_absorbed):
    m = MODELS["DeepSeek-V3"]
    size = latent_size(m["d_model"], m["num_heads"], **m["latent"], is_absorbed=is_absorbed)
    params = jax.eval_shape(
        lambda key: init_latent(key, m["d_model"], m["num_heads"], **m["latent"]),
        jax.random.key(0),
    )
    norms = m["latent"]["latent_dim"] + m["latent"]["query_latent_dim"]
    assert size.parameter_count == sum(x.size for x in jax.tree.leaves(params)) - norms

    def run(params, x):
        angles = rotary_angles(jnp.arange(LENGTH), m["latent"]["rotary_dim"])
        attention = absorbed_attention if is_absorbed else expanded_attention
        return attention(params, x, compress(params, x, angles), angles, is_causal=True)

    x = jax.ShapeDtypeStruct((1, LENGTH, m["d_model"]), jnp.float32)
    expected = forward_matmul_flops(size, token_count=LENGTH, pair_count=LENGTH**2)
    assert traced_matmul_flops(run, params, x) == expected
    assert compiled_matmul_flops(run, params, x) == expected


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
