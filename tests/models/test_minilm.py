"""The real encoder: parity with transformers, padding, gates, intermediates, bad input."""

import inspect
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
    CONFIG,
    MiniLMConfig,
    embed,
    encode,
    from_checkpoint,
    init_minilm,
    load_minilm,
    mean_pool,
)
from mha_book.models.tokens import token_strings, tokenize
from mha_book.storage import find_package
from tests.scripts import regenerate_minilm_reference as script

REFERENCE = Path(__file__).parents[1] / "data" / "minilm_reference.safetensors"
# Sizes that share no factor, so that no axis is taken for another.
TINY = MiniLMConfig(
    vocab_size=23, max_length=11, d_model=13, num_layers=2, num_heads=3, head_dim=5, d_hidden=17
)
IDS = jnp.array([[1, 4, 9, 2, 0, 0, 0], [1, 8, 6, 3, 7, 5, 2]], jnp.int32)
LENGTHS = jnp.array([4, 7], jnp.int32)
jitted = partial(jax.jit, static_argnames=("implementation", "return_intermediates"))


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
        metadata = json.loads(file.metadata()["provenance"])
        return {name: file.get_tensor(name) for name in file.keys()} | {"metadata": metadata}  # noqa: SIM118


def real_positions(lengths: Any, size: int) -> np.ndarray:
    return np.arange(size)[None] < np.asarray(lengths)[:, None]  # (B, T)


def largest(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


# --- parity with transformers ---------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("implementation", [None, "reference", "jax_nn"])
def test_hidden_states_are_those_of_transformers(
    model: minilm.MiniLM, reference: dict[str, Any], implementation: str | None, compiled: bool
) -> None:
    ids, lengths = jnp.asarray(reference["token_ids"]), jnp.asarray(reference["lengths"])
    run = jitted(encode) if compiled else encode
    hidden, records = run(
        model.params, ids, lengths, implementation=implementation, return_intermediates=True
    )
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


def test_the_reference_bites(model: minilm.MiniLM, reference: dict[str, Any]) -> None:
    ids, lengths = jnp.asarray(reference["token_ids"]), jnp.asarray(reference["lengths"])
    is_real = real_positions(lengths, ids.shape[1])
    gates = jnp.ones((6, 12)).at[5, 7].set(0.999)
    changed = encode(model.params, ids, lengths, gates=gates)[-1]
    assert largest(np.asarray(changed)[is_real], reference["hidden"][-1][is_real]) > 1e-5


def test_tokens_are_those_of_transformers(model: minilm.MiniLM, reference: dict[str, Any]) -> None:
    sentences = reference["metadata"]["sentences"]
    assert sentences == list(script.SENTENCES)
    ids, lengths = tokenize(model, sentences)
    np.testing.assert_array_equal(ids, reference["token_ids"])
    np.testing.assert_array_equal(lengths, reference["lengths"])
    assert len(set(lengths.tolist())) == 3, "the rows are padded by different amounts"


def test_the_reference_says_where_it_comes_from(reference: dict[str, Any]) -> None:
    metadata = reference["metadata"]
    assert metadata["command"] == script.COMMAND
    assert metadata["model_sha256"] == minilm.FILES["model/model.safetensors"]
    assert metadata["torch"].startswith("2.13.0")
    assert metadata["transformers"] == "5.23.0"
    assert REFERENCE.stat().st_size < 1_000_000


@pytest.mark.slow
@pytest.mark.needs_models
@pytest.mark.needs_torch
@pytest.mark.filterwarnings("ignore")  # of torch and transformers
def test_parity_holds_live_and_in_float64(reference: dict[str, Any], model: minilm.MiniLM) -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    folder = find_package(minilm.PACKAGE) / "model"
    live = script.compute(folder)
    is_real = real_positions(live["lengths"], live["token_ids"].shape[1])
    np.testing.assert_array_equal(live["token_ids"], reference["token_ids"])
    assert largest(live["hidden"][:, is_real], reference["hidden"][:, is_real]) <= 1e-5
    # In float64 nothing is left of the difference, padding included: it is rounding.
    exact = script.compute(folder, dtype=torch.float64)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), model.params)
        ids, lengths = jnp.asarray(live["token_ids"]), jnp.asarray(live["lengths"])
        hidden = encode(params, ids, lengths)
        assert hidden[-1].dtype == jnp.float64
        assert largest(np.stack(hidden), exact["hidden"]) <= 1e-9


@pytest.mark.needs_models
def test_the_sizes_are_those_of_the_package() -> None:
    folder = find_package(minilm.PACKAGE) / "model"
    config = json.loads((folder / "config.json").read_text(encoding="utf8"))
    assert config["hidden_act"] == "gelu"
    assert config["pad_token_id"] == CONFIG.pad_id
    assert config["layer_norm_eps"] == CONFIG.epsilon
    assert {
        "vocab_size": config["vocab_size"],
        "max_length": config["max_position_embeddings"],
        "d_model": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "d_hidden": config["intermediate_size"],
    }.items() <= CONFIG._asdict().items()


def test_every_loaded_array_has_the_shape_of_an_untrained_one(model: minilm.MiniLM) -> None:
    expected = jax.eval_shape(init_minilm, jax.random.key(0))
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), model.params)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), expected)
    assert sum(x.size for x in jax.tree.leaves(model.params)) == 22_565_376


def test_similar_sentences_are_near(model: minilm.MiniLM) -> None:
    sentences = ["A man is eating food.", "Someone eats a meal.", "The sky is blue today."]
    vectors = np.asarray(jax.jit(embed)(model.params, *tokenize(model, sentences)))
    similarity = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(similarity), 1, atol=1e-6)
    assert similarity[0, 1] > 0.6
    assert similarity[0, 2] < 0.3


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


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("tensors", "config", "said"),
    [
        (None, TINY, "tensors: expected Mapping.*NoneType"),
        ({}, None, "config: expected MiniLMConfig.*NoneType"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused(tensors: Any, config: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_checkpoint(tensors, config)


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


@pytest.mark.parametrize("compiled", [False, True])
def test_looking_changes_nothing(compiled: bool) -> None:
    run = jitted(encode) if compiled else encode
    plain = run(tiny(), IDS, LENGTHS)
    hidden, records = run(tiny(), IDS, LENGTHS, return_intermediates=True)
    assert len(plain) == len(hidden) == TINY.num_layers + 1
    for a, b in zip(plain, hidden, strict=True):
        if compiled:  # two programs, which XLA may arrange differently
            np.testing.assert_allclose(a, b, rtol=0, atol=3e-6)
        else:
            np.testing.assert_array_equal(a, b)
    assert len(records) == TINY.num_layers
    for number, record in enumerate(records):
        np.testing.assert_array_equal(record.inputs, hidden[number])
        inner = record.intermediates
        assert inner.weights.shape == (2, 3, 7, 7)
        assert inner.head_outputs.shape == inner.query.shape == (2, 3, 7, 5)
        np.testing.assert_allclose(inner.weights.sum(-1), 1, atol=1e-6)
        assert (np.asarray(inner.weights)[0, :, :, 4:] == 0).all(), "padding is attended to"


def test_what_stands_behind_the_end_changes_nothing() -> None:
    is_real = real_positions(LENGTHS, IDS.shape[1])
    other = jnp.where(is_real, IDS, 19)
    plain, changed = encode(tiny(), IDS, LENGTHS), encode(tiny(), other, LENGTHS)
    for a, b in zip(plain, changed, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[is_real], np.asarray(b)[is_real])
    assert (other != IDS).any()  # and it was another text
    np.testing.assert_array_equal(embed(tiny(), IDS, LENGTHS), embed(tiny(), other, LENGTHS))


def test_a_sentence_is_the_same_alone_and_in_a_batch() -> None:
    together = jitted(encode)(tiny(), IDS, LENGTHS)[-1]
    alone = jitted(encode)(tiny(), IDS[:1, :4], LENGTHS[:1])[-1]
    np.testing.assert_allclose(together[0, :4], alone[0], atol=3e-6)


@pytest.mark.needs_models
def test_a_real_sentence_is_the_same_alone_and_in_a_batch(model: minilm.MiniLM) -> None:
    sentences = ["Heads differ.", "A much longer sentence stands beside it in the same batch."]
    together = jax.jit(embed)(model.params, *tokenize(model, sentences))
    alone = jax.jit(embed)(model.params, *tokenize(model, sentences[:1]))
    np.testing.assert_allclose(together[0], alone[0], atol=1e-6)


def test_gates_of_one_change_nothing_and_of_zero_remove_a_head() -> None:
    params = tiny()
    plain = encode(params, IDS, LENGTHS)
    for a, b in zip(plain, encode(params, IDS, LENGTHS, gates=jnp.ones((2, 3))), strict=True):
        np.testing.assert_array_equal(a, b)
    gates = jnp.ones((2, 3)).at[1, 2].set(0.0)
    attention = params.layers[1].attention
    without = attention._replace(w_o=attention.w_o.at[2].set(0.0))
    layers = (params.layers[0], params.layers[1]._replace(attention=without))
    expected = encode(params._replace(layers=layers), IDS, LENGTHS)
    got = encode(params, IDS, LENGTHS, gates=gates)
    np.testing.assert_array_equal(got[1], plain[1])
    np.testing.assert_allclose(got[2], expected[2], atol=3e-6)
    assert largest(got[2], plain[2]) > 1e-3


def test_gradients_reach_the_gates_and_every_weight() -> None:
    def score(params: Any, gates: Any) -> Any:
        vectors = embed(params, IDS, LENGTHS, gates=gates)
        return jnp.sum(vectors[0] * vectors[1])

    by_params, by_gates = jax.jit(jax.grad(score, (0, 1)))(tiny(), jnp.ones((2, 3)))
    assert by_gates.shape == (2, 3)
    assert (np.abs(by_gates) > 1e-6).all()
    for path, gradient in jax.tree.leaves_with_path(by_params):
        assert np.isfinite(gradient).all(), path
        if "b_k" not in str(path):  # a key bias adds the same to all scores of a row
            assert np.abs(gradient).max() > 1e-7, path


def test_parameters_are_a_frozen_pytree() -> None:
    params = tiny()
    drawn = jax.eval_shape(partial(init_minilm, config=TINY), jax.random.key(3))
    assert jax.tree.structure(params) == jax.tree.structure(drawn)
    with pytest.raises(AttributeError):
        params.layers[0].widen.weight = jnp.ones(3)


def test_an_id_beyond_the_vocabulary_is_not_taken_for_another() -> None:
    hidden = encode(tiny(), IDS.at[1, 3].set(23), LENGTHS)
    assert np.isnan(hidden[0][1, 3]).all()
    assert np.isfinite(hidden[0][0]).all()


def test_mean_pool_by_hand() -> None:
    hidden = jnp.array([[[1.0, 0.0], [0.0, 1.0], [jnp.nan, 5.0]], [[0.0, -2.0]] * 3])
    got = mean_pool(hidden, jnp.array([2, 3]))
    half = 0.5**0.5
    np.testing.assert_allclose(got, [[half, half], [0.0, -1.0]], atol=1e-6)
    empty, gradient = jax.value_and_grad(lambda x: mean_pool(x, jnp.array([0, 0])).sum())(hidden)
    assert empty == 0
    assert np.isfinite(gradient).all()


def test_attention_is_the_package_s_own() -> None:
    source = inspect.getsource(minilm)
    assert "multi_head_attention(" in source
    assert "softmax" not in source


# --- tokens ---------------------------------------------------------------------------------


def test_tokenize_and_token_strings(model: minilm.MiniLM) -> None:
    ids, lengths = tokenize(model, ["Tokenizers split!", "Hi"])
    assert ids.dtype == lengths.dtype == jnp.int32
    assert lengths.tolist() == [7, 3]
    shown = [token_strings(model, row) for row in ids]
    assert shown[0] == ["[CLS]", "token", "##izer", "##s", "split", "!", "[SEP]"]
    assert shown[1] == ["[CLS]", "hi", "[SEP]"] + ["[PAD]"] * 4


def test_no_sentence_is_cut_off(model: minilm.MiniLM) -> None:
    ids, lengths = tokenize(model, ["word " * 510])
    assert (ids.shape, lengths.tolist()) == ((1, 512), [512])
    with pytest.raises(ValueError, match=r"sentences\[1\]: expected at most 512 tokens; got 513"):
        tokenize(model, ["fits", "word " * 511])


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("sentences", ["one string", [], (), [3], None, 7])
def test_tokenize_refuses(sentences: Any) -> None:
    with pytest.raises(ValueError, match="sentences: expected a list of at least one string; got"):
        tokenize(minilm.MiniLM(tiny(), TINY, None), sentences)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    "token_ids, message",
    [
        (IDS, r"token_ids: expected axes \(T,\), that is rank 1; got rank 2, shape \(2, 7\)"),
        (jnp.array([1, 23]), "token_ids: expected numbers from 0 to 22; got 23"),
        (jnp.array([-1, 2]), "token_ids: expected numbers from 0 to 22; got -1"),
        (jnp.array([1.5]), "token_ids: expected an array of integers; got float32"),
        ([1, 2], "token_ids: expected an array of integers; got list"),
    ],
)
def test_token_strings_refuses(token_ids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_strings(minilm.MiniLM(tiny(), TINY, None), token_ids)


# --- bad input ------------------------------------------------------------------------------

BAD = [
    ((IDS[0], LENGTHS), {}, r"token_ids: expected axes \(B, T\), that is rank 2; got shape \(7,\)"),
    ((IDS.astype(jnp.float32), LENGTHS), {}, "token_ids: expected an array of int.*; got float32"),
    (([[1, 2]], LENGTHS), {}, "token_ids: expected an array of integers; got list"),
    ((jnp.ones((2, 12), int), LENGTHS), {}, r"token_ids: expected at most 11 tok.*\(2, 12\)"),
    ((IDS, LENGTHS[:1]), {}, r"lengths: expected one length .* \(B,\) = \(2,\); got shape \(1,\)"),
    ((IDS, LENGTHS[:, None]), {}, r"lengths: expected .* = \(2,\); got shape \(2, 1\)"),
    ((IDS, LENGTHS * 1.0), {}, "lengths: expected an array of integers; got float32"),
    ((IDS, LENGTHS > 0), {}, "lengths: expected an array of integers; got bool"),
    (
        (IDS, LENGTHS),
        {"gates": jnp.ones((3, 2))},
        r"gates: expected .*axes \(L, N\) = \(2, 3\); got shape \(3, 2\)",
    ),
    ((IDS, LENGTHS), {"gates": jnp.ones((2, 3), int)}, "gates: expected a floating-point dtype"),
    ((IDS, LENGTHS), {"implementation": "fastest"}, "implementation: expected one of .*fastest"),
]


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize("arguments, options, message", BAD)
@pytest.mark.parametrize("function", [encode, embed])
def test_bad_input_is_named(
    function: Any, arguments: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(tiny(), *arguments, **options)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    "hidden, lengths, message",
    [
        (jnp.ones((2, 3)), LENGTHS, r"hidden: expected axes \(B, T, D\), that is rank 3; got"),
        (jnp.ones((2, 3, 5), int), LENGTHS, "hidden: expected a floating-point dtype; got int32"),
        (jnp.ones((3, 7, 5)), LENGTHS, r"lengths: expected .*hidden.*\(3,\); got shape \(2,\)"),
        (jnp.ones((2, 7, 5)), LENGTHS * 1.0, "lengths: expected an array of integers; got float"),
        (jnp.ones((2, 7, 5)), 4, "lengths: expected an array of integers; got int"),
    ],
)
def test_mean_pool_names_bad_input(hidden: Any, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_pool(hidden, lengths)


def test_the_model_offers_the_functions_of_tokens() -> None:
    assert (minilm.tokenize, minilm.token_strings) == (tokenize, token_strings)
    assert {"tokenize", "token_strings"} <= set(minilm.__all__)
