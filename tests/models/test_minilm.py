"""The real encoder: parity with transformers, padding, gates, intermediates, bad input."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import minilm
from mha_book.models.minilm import encode_with_intermediates, mean_pool
from mha_book.models.tokens import token_strings, tokenize
from tests.scripts import regenerate_model_references as script
from tests.turns import in_turn

REFERENCE = Path(__file__).parents[1] / "data" / "minilm_reference.safetensors"
jitted = partial(jax.jit, static_argnames="implementation")


@pytest.fixture(scope="module")
def model(needs_models: None) -> minilm.MiniLM:
    return minilm.load_minilm()


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


@in_turn("minilm")
@pytest.mark.needs_models
@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")  # of torch and transformers
def test_the_stored_reference_is_what_transformers_makes(reference: dict[str, Any]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    live = script.minilm_arrays()
    is_real = real_positions(live["lengths"], live["token_ids"].shape[1])
    np.testing.assert_array_equal(live["token_ids"], reference["token_ids"])
    assert largest(live["hidden"][:, is_real], reference["hidden"][:, is_real]) <= 1e-5


# --- what holds for any weights -------------------------------------------------------------


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
