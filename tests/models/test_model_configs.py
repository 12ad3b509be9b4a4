"""The real models of book/data/models.json: formulas against what is built and compiled."""

import json
import math
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from mha_book import init_multi_head, multi_head_attention
from mha_book.costs import (
    attention_size,
    compiled_matmul_flops,
    forward_matmul_flops,
    kv_cache_bytes,
    latent_size,
    traced_matmul_flops,
)
from mha_book.multihead.latent import absorbed_attention, compress, expanded_attention, init_latent
from mha_book.multihead.layer import project_heads
from mha_book.rope import rotary_angles

DATA = json.loads(
    (Path(__file__).parents[2] / "book" / "data" / "models.json").read_text(encoding="utf-8")
)
MODELS = {model["name"]: model for model in DATA["models"]}
HEADS = [name for name, model in MODELS.items() if model["latent"] is None]
BUILT = [name for name, model in MODELS.items() if model["attention_parameters"]]
# One model of each architecture, and each that breaks a habit: compiling all takes minutes.
VARIED = [
    "Transformer base", "BERT-base", "GPT-2 XL", "T5-3B", "T5-11B", "MiniLM-L6", "GPT-3 175B",
    "GPT-J 6B", "GPT-NeoX 20B", "PaLM 540B", "Falcon 7B", "Mistral 7B", "Phi-2", "Gemma 2B",
    "Gemma 7B", "Qwen2 7B", "Gemma 2 27B", "SmolLM2 135M", "Qwen3 0.6B", "gpt-oss-120b",
]  # fmt: skip
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


def draw(name):
    """A function that makes the parameters of one layer of a model from a key."""
    m = MODELS[name]

    def start(key):
        params = init_multi_head(
            key,
            m["d_model"],
            m["num_heads"],
            num_kv_heads=m["num_kv_heads"],
            head_dim=m["head_dim"],
            use_bias=m["input_biases"],
        )
        return params if m["output_bias"] else params._replace(b_o=None)

    return start


@cache
def shapes_of(name):
    return jax.eval_shape(draw(name), jax.random.key(0))


def attend_causally(params, x):
    return multi_head_attention(params, x, is_causal=True)


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


@pytest.mark.parametrize("name", HEADS)
def test_parameters_of_the_layer(name):
    assert size_of(name).parameter_count == sum(x.size for x in jax.tree.leaves(shapes_of(name)))


@pytest.mark.parametrize("name", VARIED)
def test_products_of_the_layer(name):
    x = jax.ShapeDtypeStruct((1, LENGTH, MODELS[name]["d_model"]), jnp.float32)
    expected = forward_matmul_flops(size_of(name), token_count=LENGTH, pair_count=LENGTH**2)
    assert traced_matmul_flops(attend_causally, shapes_of(name), x) == expected


@pytest.mark.parametrize("name", VARIED)
def test_bytes_of_the_cache(name):
    x = jax.ShapeDtypeStruct((2, LENGTH, MODELS[name]["d_model"]), jnp.float32)
    params = shapes_of(name)
    kept = [
        jax.eval_shape(project_heads, x, weight, bias)
        for weight, bias in ((params.w_k, params.b_k), (params.w_v, params.b_v))
    ]
    expected = sum(array.size * array.dtype.itemsize for array in kept)
    counted = kv_cache_bytes(size_of(name), position_count=2 * LENGTH, bytes_per_element=4)
    assert counted == expected


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

    if transformers.__version__ != DATA["provenance"]["transformers"]:
        pytest.skip(f"the file was made with transformers {DATA['provenance']['transformers']}")
    for model in script.MODELS:
        if model.kind in ("bert", "t5", "llama"):  # the others take longer to build
            config, differs = script.published(model)
            assert differs == MODELS[model.name]["differs"]
            built = script.attention_parameters(config)
            assert built == MODELS[model.name]["attention_parameters"]
