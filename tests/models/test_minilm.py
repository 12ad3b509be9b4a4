"""The real encoder: parity with transformers, padding, gates, intermediates, bad input."""

import json
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import minilm
from mha_book.models.minilm import (
    MiniLMConfig,
    embed,
    encode,
    encode_with_intermediates,
    from_checkpoint,
    init_minilm,
    load_minilm,
    mean_pool,
)
from mha_book.models.tokens import token_strings, tokenize
from tests.scripts import regenerate_model_references as script

REFERENCE = Path(__file__).parents[1] / "data" / "minilm_reference.safetensors"
# Sizes that share no factor, so that no axis is taken for another.
TINY = MiniLMConfig(
    vocab_size=23, max_length=11, d_model=13, num_layers=2, num_heads=3, head_dim=5, d_hidden=17
)
IDS = jnp.array([[1, 4, 9, 2, 0, 0, 0], [1, 8, 6, 3, 7, 5, 2]], jnp.int32)
LENGTHS = jnp.array([4, 7], jnp.int32)
jitted = partial(jax.jit, static_argnames="implementation")


@cache
def tiny() -> minilm.MiniLMParams:
    """Random parameters, biases and norms included."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(partial(init_minilm, config=TINY), jax.random.key(0))
    draw = partial(rng.normal, 0.0, 0.6)
    return jax.tree.map(lambda x: jnp.asarray(draw(size=x.shape), jnp.float32), shapes)


@pytest.fixture(scope="module")
def model(needs_models: None) -> minilm.MiniLM:
    return load_minilm()


@pytest.fixture(scope="module")
def reference(needs_models: None) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(REFERENCE, "numpy") as file:
        metadata = {"sentences": json.loads(file.metadata()["sentences"])}
        return {name: file.get_tensor(name) for name in file.keys()} | {"metadata": metadata}  # noqa: SIM118


def real_positions(lengths: Any, size: int) -> np.ndarray:
    return np.arange(size)[None] < np.asarray(lengths)[:, None]  # (B, T)


def largest(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


# --- parity with transformers ---------------------------------------------------------------


@pytest.mark.parametrize("implementation", [None, "reference"])
def test_hidden_states_are_those_of_transformers(
    model: minilm.MiniLM, reference: dict[str, Any], implementation: str | None
) -> None:
    ids, lengths = jnp.asarray(reference["token_ids"]), jnp.asarray(reference["lengths"])
    run = jitted(encode_with_intermediates)
    hidden, records = run(model.params, ids, lengths, implementation=implementation)
    is_real = real_positions(lengths, ids.shape[1])
    assert len(hidden) == len(reference["hidden"]) == 7
    for ours, theirs in zip(hidden, reference["hidden"], strict=True):
        assert largest(np.asarray(ours)[is_real], theirs[is_real]) <= 1e-5
        # Behind the end stands a stack of equal [PAD] tokens, and float32 loses more there: both
        # are some 5e-5 away from float64.
        assert largest(ours, theirs) <= 3e-4
    for record, theirs in zip(records, reference["weights"], strict=True):
        assert largest(record.intermediates.weights, theirs) <= 2e-5
    assert largest(mean_pool(hidden[-1], lengths), reference["embeddings"]) <= 1e-6


def test_tokens_are_those_of_transformers(model: minilm.MiniLM, reference: dict[str, Any]) -> None:
    sentences = reference["metadata"]["sentences"]
    assert sentences == list(script.SENTENCES)
    ids, lengths = tokenize(model, sentences)
    np.testing.assert_array_equal(ids, reference["token_ids"])
    np.testing.assert_array_equal(lengths, reference["lengths"])
    assert len(set(lengths.tolist())) == 3, "the rows are padded by different amounts"


@pytest.mark.slow
@pytest.mark.needs_models
@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")  # of torch and transformers
def test_parity_holds_live_and_in_float64(reference: dict[str, Any], model: minilm.MiniLM) -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    live = script.minilm_arrays()
    is_real = real_positions(live["lengths"], live["token_ids"].shape[1])
    np.testing.assert_array_equal(live["token_ids"], reference["token_ids"])
    assert largest(live["hidden"][:, is_real], reference["hidden"][:, is_real]) <= 1e-5
    # In float64 nothing is left of the difference, padding included: it is rounding.
    exact = script.minilm_arrays(torch.float64)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), model.params)
        ids, lengths = jnp.asarray(live["token_ids"]), jnp.asarray(live["lengths"])
        hidden = encode(params, ids, lengths)
        assert hidden[-1].dtype == jnp.float64
        assert largest(np.stack(hidden), exact["hidden"]) <= 1e-9


# --- what holds for any weights -------------------------------------------------------------


def test_a_checkpoint_is_taken_apart_and_put_together_again() -> None:
    params = tiny()
    tensors = to_checkpoint(params, TINY)
    again = from_checkpoint(tensors, TINY)
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_a_checkpoint_that_does_not_fit_is_refused() -> None:
    tensors, name = to_checkpoint(tiny(), TINY), "encoder.layer.1.attention.self.key.bias"
    width = TINY.num_heads * TINY.head_dim
    for other, got in (
        ({}, "no tensor of this name"),
        ({name: np.ones(2 * width, np.float32)}, f"shape ({2 * width},)"),
        ({name: np.ones(width, np.int8)}, "int8"),
    ):
        changed = {n: x for n, x in tensors.items() if n != name} | other
        with pytest.raises(ValueError, match=re.escape(name)) as error:
            from_checkpoint(changed, TINY)
        assert str(error.value).startswith("tensors[")
        assert f"got {got}" in str(error.value)
    with pytest.raises(ValueError, match=r"word_embeddings.*expected by config the shape"):
        from_checkpoint(tensors, TINY._replace(vocab_size=TINY.vocab_size + 1))


def to_checkpoint(params: minilm.MiniLMParams, config: MiniLMConfig) -> dict[str, np.ndarray]:
    """Name the arrays as BERT's checkpoints do, matrices as (out, in): written on its own."""
    tensors: dict[str, Any] = {}

    def put(name: str, weight: Any, bias: Any) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = np.asarray(weight), np.asarray(bias)

    embeddings = params.embeddings
    for name, table in (
        ("word", embeddings.word),
        ("position", embeddings.position),
        ("token_type", embeddings.kind),
    ):
        tensors[f"embeddings.{name}_embeddings.weight"] = np.asarray(table)
    put("embeddings.LayerNorm", *embeddings.norm)
    inner = config.num_heads * config.head_dim
    for number, layer in enumerate(params.layers):
        name, attention = f"encoder.layer.{number}", layer.attention
        for short, long in (("q", "query"), ("k", "key"), ("v", "value")):
            w, b = getattr(attention, f"w_{short}"), getattr(attention, f"b_{short}")
            # Row n·H + a of the torch matrix makes entry a of head n.
            rows = np.einsum("dnh->nhd", np.asarray(w)).reshape(inner, config.d_model)
            put(f"{name}.attention.self.{long}", rows, np.asarray(b).reshape(inner))
        columns = np.einsum("nhd->dnh", np.asarray(attention.w_o)).reshape(config.d_model, inner)
        put(f"{name}.attention.output.dense", columns, attention.b_o)
        put(f"{name}.attention.output.LayerNorm", *layer.attention_norm)
        put(f"{name}.intermediate.dense", layer.widen.weight.T, layer.widen.bias)
        put(f"{name}.output.dense", layer.narrow.weight.T, layer.narrow.bias)
        put(f"{name}.output.LayerNorm", *layer.output_norm)
    return tensors


def test_what_stands_behind_the_end_changes_nothing() -> None:
    is_real = real_positions(LENGTHS, IDS.shape[1])
    other = jnp.where(is_real, IDS, 19)
    plain, changed = encode(tiny(), IDS, LENGTHS), encode(tiny(), other, LENGTHS)
    for a, b in zip(plain, changed, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[is_real], np.asarray(b)[is_real])
    assert (other != IDS).any()  # and it was another text
    np.testing.assert_array_equal(embed(tiny(), IDS, LENGTHS), embed(tiny(), other, LENGTHS))


def test_mean_pool_by_hand() -> None:
    hidden = jnp.array([[[1.0, 0.0], [0.0, 1.0], [jnp.nan, 5.0]], [[0.0, -2.0]] * 3])
    got = mean_pool(hidden, jnp.array([2, 3]))
    half = 0.5**0.5
    np.testing.assert_allclose(got, [[half, half], [0.0, -1.0]], atol=1e-6)
    empty, gradient = jax.value_and_grad(lambda x: mean_pool(x, jnp.array([0, 0])).sum())(hidden)
    assert empty == 0
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 3e38])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_mean_pool_gives_unit_vectors_in_any_precision(dtype: str, scale: float) -> None:
    """In float16 the squares were less than its smallest number, and all was zero."""
    scale = np.clip(scale, 1e-4, 6e4) if dtype == "float16" else scale
    hidden = jnp.array([[[0.375, 0.5], [0.375, 0.5]]]) * scale
    got = mean_pool(hidden.astype(dtype), jnp.array([2]))
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(jnp.float32), [[0.6, 0.8]], atol=1e-2)
    wide = mean_pool(jnp.full((1, 1, 512), scale, dtype), jnp.array([1]))
    np.testing.assert_allclose(wide.astype(jnp.float32), 512**-0.5, rtol=1e-2)


# --- tokens ---------------------------------------------------------------------------------


def test_tokenize_and_token_strings(model: minilm.MiniLM) -> None:
    ids, lengths = tokenize(model, ["Tokenizers split!", "Hi"])
    assert ids.dtype == lengths.dtype == jnp.int32
    assert lengths.tolist() == [7, 3]
    shown = [token_strings(model, row) for row in ids]
    assert shown[0] == ["[CLS]", "token", "##izer", "##s", "split", "!", "[SEP]"]
    assert shown[1] == ["[CLS]", "hi", "[SEP]"] + ["[PAD]"] * 4


# --- bad input ------------------------------------------------------------------------------
