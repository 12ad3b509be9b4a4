"""The experiments on attention sinks: readings against the models, short forms, what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import sinks, sinks_training
from mha_book.layers import gelu, layer_norm, linear
from mha_book.models import smollm2, tiny
from mha_book.multihead.sinks import (
    gated_attention,
    sigmoid_attention,
    sink_logit_attention,
)
from tests.models.small import small_smollm2

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized
IDS = jnp.arange(3, 20, dtype=jnp.int32) * 5 % 101


@pytest.fixture(scope="module")
def bench():
    return sinks.Bench(small_smollm2(), sinks.QUICK)


def losses(bench, **changes):
    return bench.read(IDS[None], **changes).losses[0]


def test_a_plain_reading_is_that_of_the_model(bench):
    params, config, _ = bench.model
    want, records = smollm2.forward_with_intermediates(params, IDS[None], config=config)
    run = bench.read(IDS[None])
    told = smollm2.token_losses(params, IDS[None], config=config)[0]
    np.testing.assert_allclose(run.losses[0], told, atol=1e-4)
    weights = np.stack([np.asarray(record.intermediates.weights[0]) for record in records])
    mass = weights[:, :, sinks.EARLIEST :, :2].mean(2)
    np.testing.assert_allclose(run.mass[0], mass, atol=1e-5)
    assert want.shape[1] == len(IDS)


def test_a_window_is_that_of_the_model(bench):
    params, config, _ = bench.model
    near = bench.near(len(IDS), 5, ())
    found = losses(bench, near=near, whole=np.zeros(bench.key_heads))
    told = smollm2.token_losses(params, IDS[None], config=config, window=5)[0]
    np.testing.assert_allclose(found, told, atol=1e-4)


def test_without_the_first_key_the_text_begins_at_the_second_token(bench):
    """Rotary positions tell distances alone, so that it is the text without its first token."""
    params, config, _ = bench.model
    zeros = np.zeros(bench.heads)
    found = losses(bench, own=zeros, logit=zeros + sinks.HIDDEN, value=zeros)
    told = smollm2.token_losses(params, IDS[None, 1:], config=config)[0]
    np.testing.assert_allclose(found[1:], told, atol=1e-4)


def test_the_first_token_as_a_constant_key_and_value(bench):
    params, config, _ = bench.model
    found = sinks.constant_losses(params, IDS, config=config)
    np.testing.assert_allclose(found, losses(bench)[1:], atol=1e-4)


def test_a_logit_in_place_of_the_sink_by_hand():
    """One head of the first layer: its weights, with a logit in the denominator and no value."""
    model = small_smollm2(num_heads=1, num_kv_heads=1)
    bench = sinks.Bench(model, sinks.QUICK)
    zeros = np.zeros((2, 1))
    run = bench.read(IDS[None], own=zeros, logit=zeros + 0.7, value=zeros)
    run = smollm2.forward_with_intermediates
    _, records = run(model.params, IDS[None], config=model.config)
    scores = np.log(np.asarray(records[0].intermediates.weights[0, 0], np.float64) + 1e-300)
    told = []
    for row in range(sinks.EARLIEST, len(IDS)):
        seen = scores[row, : row + 1]  # log weights: the scores, but for one number
        real = float(run_score(model, row, records))
        shifted = seen - seen[0] + real
        told.append(np.exp(0.7) / (np.exp(0.7) + np.exp(shifted[1:]).sum()))
    assert run.mass[0, 0, 0, 0] == pytest.approx(np.mean(told), abs=1e-4)


def run_score(model, row, records):
    """The score of one query with the first key, from the definition."""
    from mha_book.layers import rms_norm
    from mha_book.multihead.layer import project_qkv
    from mha_book.rope import rotary_angles

    layer, config = model.params.layers[0], model.config
    x = rms_norm(records[0].inputs, layer.attention_norm, config.epsilon)
    angles = rotary_angles(jnp.arange(len(IDS)), config.head_dim, config.rope_theta)
    query, key, _ = project_qkv(layer.attention, x, angles=angles)
    return query[0, 0, row] @ key[0, 0, 0] / np.sqrt(config.head_dim)


CONFIG = tiny.TinyConfig(11, 12, 8, 2, 2, positions="rotary", use_bias=False)
CHARACTERS = jnp.array([[10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]])


forward = jax.jit(sinks_training.forward, static_argnums=(2, 3))


def model_of(form):
    return sinks_training.fresh(jax.random.key(0), CONFIG, form)


def test_softmax_is_the_tiny_model():
    params = model_of("softmax")
    logits, *_ = forward(params, CHARACTERS, CONFIG, "softmax")
    told = tiny.forward(params.model, CHARACTERS, config=CONFIG)
    np.testing.assert_allclose(logits, told, atol=1e-5)


def of_the_package(form, params, number):
    """Attention of a layer in a form, as a function of the normalized input and the angles."""
    weights, given = params.model.layers[number].attention, {"is_causal": True}
    if form == "logit":
        sink = params.logit[number]
        return lambda x, angles: sink_logit_attention(weights, sink, x, angles=angles, **given)
    if form == "gate":
        gate = params.gate[number]
        return lambda x, angles: gated_attention(weights, gate, x, angles=angles, **given)
    offset = float(params.logit[number, 0])  # the package has one number for all heads
    return lambda x, angles: sigmoid_attention(weights, x, offset=offset, angles=angles, **given)


@pytest.mark.parametrize("form", ["logit", "gate", "sigmoid"])
def test_a_form_is_that_of_the_package(form):
    """The experiment needs the weights, which the package's functions do not return."""
    params = model_of(form)
    if form == "gate":
        drawn = jax.random.normal(jax.random.key(1), params.gate.shape)
        params = params._replace(gate=drawn)
    else:
        heads = [[-1.5, -1.1], [0.7, 1.1]] if form == "logit" else [[-1.5, -1.5], [0.7, 0.7]]
        params = params._replace(logit=jnp.array(heads))
    model, x = params.model, params.model.token_embedding[CHARACTERS]
    angles, epsilon = tiny.angles(CONFIG, CHARACTERS), CONFIG.epsilon
    for number, layer in enumerate(model.layers):
        attend = of_the_package(form, params, number)
        x = x + attend(layer_norm(x, *layer.attention_norm, epsilon), angles)
        wide = linear(layer_norm(x, *layer.feed_forward_norm, epsilon), *layer.widen)
        x = x + linear(gelu(wide), *layer.narrow)
    told = linear(layer_norm(x, *model.output_norm, epsilon), model.unembedding)
    found, weights, _ = forward(params, CHARACTERS, CONFIG, form)
    np.testing.assert_allclose(found, told, atol=1e-5)
    if form != "gate":
        assert abs(weights.sum(-1) - 1).min() > 1e-3


def test_a_logit_takes_its_share_and_a_sigmoid_needs_no_others():
    """At equal scores a logit of 0 counts as one key more; sigmoid weights are 1 / (1 + T)."""
    params = model_of("logit")
    still = jax.tree.map(jnp.zeros_like, params)
    weights = forward(still, CHARACTERS, CONFIG, "logit")[1]
    np.testing.assert_allclose(weights[0, 0, 0, 3, :4], 1 / 5, atol=1e-6)
    assert not weights[0, 0, 0, 3, 4:].any()
    start = sinks_training.fresh(jax.random.key(0), CONFIG, "sigmoid").logit
    still = jax.tree.map(jnp.zeros_like, params)._replace(logit=start)
    weights = forward(still, CHARACTERS, CONFIG, "sigmoid")[1]
    np.testing.assert_allclose(weights[0, 0, 0, 3, :4], 1 / 13, atol=1e-6)


def consistent(document, sizes):
    """What holds of the short form and of the long."""
    for found in document["mass"].values():
        assert np.shape(found["by layer"]) == (sizes.texts, sizes.layers)
        by_text, by_layer = (np.array(found[name]) for name in ("by text", "by layer"))
        np.testing.assert_allclose(by_text[:, 0], by_layer.mean(1), rtol=1e-3)
        by_head = np.array(found["by head"])[..., 0]
        np.testing.assert_allclose(by_head.mean(), by_text[:, 0].mean(), rtol=1e-3)
    for found in (*document["sink"].values(), *document["later"].values()):
        assert len(found) == sizes.texts
    assert document["constants"]["difference"] < 1e-3
    for order in document["orders"].values():
        assert sorted(order) == list(range(3 * sizes.layers))
    for found in document["cut"].values():
        assert len(found["copied"]) == len(found["text"]) == sizes.copies
    pieces = sizes.stream // (sizes.window // 4)
    for found in document["stream"].values():
        assert np.shape(found) == (sizes.streams, pieces)
    inside = sizes.window // (sizes.window // 4)  # as far as a window reaches, nothing is cut
    for way in ("window", "first", "ordinary", "first four", "first, moved"):
        gap = np.array(document["stream"][way]) - np.array(document["stream"]["all"])
        assert abs(gap[:, :inside]).max() < 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("needs_models")
def test_the_short_form(tmp_path):
    path = sinks.main(["--quick", "--work", str(tmp_path), "--out", str(tmp_path)])
    consistent(json.loads(path.read_text()), sinks.QUICK)


@pytest.mark.slow
def test_the_short_training(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks_training, "FORMS", ("gate",))  # each form is a program to compile
    path = sinks_training.main(["--quick", "--work", str(tmp_path), "--out", str(tmp_path)])
    document = json.loads(path.read_text())
    assert set(document["forms"]) == set(sinks_training.FORMS)


def test_the_stored_results():
    document = json.loads((DATA / "sinks.json").read_text())
    consistent(document, sinks.Sizes())
    assert document["provenance"]["command"] == sinks.COMMAND
    document = json.loads((DATA / "sinks-training.json").read_text())
    sizes = sinks_training.Sizes()
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    for found in document["forms"].values():
        assert np.shape(found["mass"]) == (sizes.seeds, sizes.num_layers, sizes.num_heads)
        assert len(found["loss"]) == sizes.seeds
