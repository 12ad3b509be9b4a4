"""SmolLM2 against transformers loading the same file, and what every decoder must do."""

import functools
import json
import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.models.tokens import tokenize
from mha_book.pruning.removal import prune_model
from tests.models.small import small_smollm2
from tests.turns import in_turn

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "data" / "smollm2_reference.safetensors"


@pytest.fixture(scope="module")
def model(needs_models):
    return smollm2.load_smollm2()


@pytest.fixture(scope="module")
def reference():
    return load_file(REFERENCE)


def origin(path):
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size))["__metadata__"]


@functools.cache
def compiled(function=smollm2.forward):
    return jax.jit(function, static_argnames=("implementation", "config"))


def run(model, *arguments, function=smollm2.forward, **options):
    return compiled(function)(model.params, *arguments, config=model.config, **options)


def test_the_tokenizer_cuts_the_text_as_transformers_does(model, reference):
    token_ids, lengths = tokenize(model, [json.loads(origin(REFERENCE)["text"])])
    assert int(lengths[0]) > len(reference["token_ids"])
    np.testing.assert_array_equal(token_ids[0, :256], reference["token_ids"])


def test_logits_and_loss_equal_those_of_transformers(model, reference):
    token_ids = jnp.asarray(reference["token_ids"])[None]
    logits = np.asarray(compiled()(model.params, token_ids)[0])  # up to 55: rounding differs
    np.testing.assert_allclose(logits[::32], reference["rows"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(logits[:, ::384], reference["columns"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(logits.max(-1), reference["max"], rtol=0, atol=1e-3)
    np.testing.assert_array_equal(logits.argmax(-1), reference["argmax"])
    loss = float(next_token_losses(jnp.asarray(logits)[None, :-1], token_ids).mean())
    assert loss == pytest.approx(float(reference["token_loss"].mean()), abs=1e-4)


@in_turn("smollm2")
@pytest.mark.needs_models
@pytest.mark.needs_torch
def test_the_stored_reference_is_what_transformers_makes(reference, tmp_path):
    """By its own command, in its own process: after other tests torch may round otherwise."""
    pytest.importorskip("transformers", reason="no transformers: make peers")
    out = tmp_path / "again.safetensors"
    module = "tests.scripts.regenerate_model_references"
    command = [sys.executable, "-m", module, "smollm2_reference", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    again = load_file(out)
    for name, stored in reference.items():
        np.testing.assert_allclose(again[name], stored, rtol=0, atol=2e-4, err_msg=name)


def test_padding_changes_nothing_real_and_intermediates_change_nothing(small):
    texts = ["Four score and seven", "We the people"]
    token_ids, lengths = tokenize(small, texts)
    together = run(small, token_ids, lengths)
    with_records, records = run(
        small, token_ids, lengths, function=smollm2.forward_with_intermediates
    )
    np.testing.assert_allclose(together, with_records, atol=2e-5)  # two programs: rounding
    losses, score = [], jax.jit(smollm2.loss, static_argnames="config")
    for row, text in enumerate(texts):
        alone, length = tokenize(small, [text])
        np.testing.assert_allclose(together[row, : int(length[0])], run(small, alone)[0], atol=1e-4)
        losses.append(float(score(small.params, alone, config=small.config)))
    assert len(records) == 2
    inside = records[0].intermediates
    longest = max(map(int, lengths))
    assert inside.query.shape == (2, small.config.num_heads, longest, small.config.head_dim)
    assert inside.key.shape[1] == inside.value.shape[1] == small.config.num_kv_heads
    np.testing.assert_allclose(inside.weights[0].sum(-1), 1.0, atol=1e-5)
    tokens = np.asarray(lengths) - 1  # the first token is given
    whole = float(score(small.params, token_ids, lengths, config=small.config))
    assert whole == pytest.approx(float(np.average(losses, weights=tokens)), abs=1e-4)


def test_removed_heads_are_closed_gates():
    small = small_smollm2(num_heads=9)  # groups of three
    config = small.config
    keep = np.ones((2, 9), bool)
    keep[0, [0, 3, 4, 5]] = False  # of the groups of three, 2, 0 and 3 are left
    keep[1] = False  # a whole layer
    ids = jnp.array([[0, 54, 50, 98, 18]], jnp.int32)
    with jax.enable_x64(True):  # rounding aside, removed is closed
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), small.params)

        @jax.jit
        def logits(params, gates):
            return smollm2.forward(params, ids, config=config, gates=gates)

        gated = np.asarray(logits(params, jnp.asarray(keep, jnp.float64)))
        pruned = prune_model(params, keep, uneven="pad")
        assert [x.attention.w_q.shape[1] for x in pruned.layers] == [6, 0]
        np.testing.assert_allclose(logits(pruned, None), gated, atol=1e-5, rtol=0)
    # Reading a prompt into caches, then one token: the caches are as wide as each layer is.
    pruned = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float32)), pruned)
    caches = smollm2.init_caches(1, 8, config=config, params=pruned)
    assert [cache.keys.shape[1] for cache in caches] == [2, 0]

    @jax.jit
    def decoded(params, caches):
        given = params, ids[:, :4], jnp.array([4], jnp.int32)
        first, caches = smollm2.prefill(*given, caches, config=config)
        return first, smollm2.decode_step(params, ids[:, 4], caches, config=config)[0]

    first, second = decoded(pruned, caches)
    np.testing.assert_allclose(first, gated[:, 3], atol=1e-3)
    np.testing.assert_allclose(second, gated[:, 4], atol=1e-3)
