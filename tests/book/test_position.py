"""The page on positions: order-blindness on real models, and a slice of the stored data."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import positions
from experiments.heads import windows
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import tokenize
from mha_book.multihead.layer import multi_head_attention
from mha_book.specialization.intervals import mean_interval

DATA = Path(__file__).parents[2] / "book" / "data" / "positions.json"
SIZES = positions.Sizes()
SENTENCE = "The judge asked the lawyer, and the lawyer lied to the judge."
pytestmark = pytest.mark.unoptimized


@pytest.fixture(scope="module")
def stored():
    return json.loads(DATA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def decoder(needs_models):
    return smollm2.load_smollm2()


@pytest.mark.usefixtures("needs_models")
def test_an_encoder_without_positions_is_blind_to_order():
    model = minilm.load_minilm()
    ids, lengths = tokenize(model, [SENTENCE])
    order = np.random.default_rng(0).permutation(ids.shape[1])
    table = model.params.embeddings
    blind = model.params._replace(embeddings=table._replace(position=0 * table.position))
    run = jax.jit(minilm.encode)
    gaps = []
    for params in (blind, model.params):
        one, other = (run(params, x, lengths)[-1][0] for x in (ids, ids[:, order]))
        gaps.append(float(abs(one[order] - other).max()))
    assert gaps[0] < 1e-4 < 0.3 < gaps[1]


def test_a_causal_decoder_without_positions_is_blind_in_its_first_layer_alone(decoder):
    ids, _ = tokenize(decoder, [SENTENCE])
    last = ids.shape[1] - 1
    inner = np.random.default_rng(0).permutation(np.arange(1, last))
    mixed = ids[:, np.concatenate(([0], inner, [last]))]
    still = jnp.zeros((last + 1, decoder.config.head_dim // 2))

    def stream(ids, angles, layers):
        short = decoder.params._replace(layers=decoder.params.layers[:layers])

        def attention(number, layer, x, normalized):
            return multi_head_attention(layer.attention, normalized, is_causal=True, angles=angles)

        return smollm2.hidden_states(short, ids, attention)[0, -1]

    gaps = [float(abs(stream(ids, still, n) - stream(mixed, still, n)).max()) for n in (1, 2)]
    assert gaps[0] < 1e-4 < 1e-2 < gaps[1]


def test_the_stored_heads_are_those_of_the_packaged_weights(stored, decoder):
    assert stored["config"] == json.loads(json.dumps({**SIZES._asdict(), "factor": SIZES.factor}))
    ids = windows(decoder, "validation", SIZES.windows, SIZES.window)[:1]
    short = decoder._replace(  # the layers that are looked at
        params=decoder.params._replace(layers=decoder.params.layers[:17]),
        config=decoder.config._replace(num_layers=17),
    )
    again = positions.read_heads(short, ids, SIZES)
    assert again.keys() == stored["heads"].keys()
    for head, ways in again.items():
        for way, found in ways.items():
            if way == "difference":
                assert found[0] < 1e-5  # the head rebuilt is the head of the model
                continue
            for name, value in found.items() if isinstance(found, dict) else [(way, found)]:
                kept = stored["heads"][head][way]
                kept = kept[name] if isinstance(found, dict) else kept
                assert value[0] == pytest.approx(kept[0], abs=2e-3), (head, way, name)


def test_one_head_is_made_by_the_rotation_and_its_control_by_content(stored):
    def interval(head, way, measure):
        mean, half = mean_interval(stored["heads"][head][way][measure])
        return mean - half, mean + half

    even = {name: np.mean(x) for name, x in stored["heads"]["even"].items()}
    back, same = "previous token", "same token"
    assert interval("16.0", "content frozen", back)[0] > interval("16.0", "whole", back)[1]
    assert interval("16.0", "rotation frozen", back)[1] < even[back]
    assert interval("8.1", "rotation frozen", same)[0] > 3 * even[same]
    assert interval("8.1", "content frozen", same)[1] < even[same]
    margin = stored["heads"]["16.0"]["margin"]
    parts = sum(np.array(x) for name, x in margin.items() if name != "whole")
    np.testing.assert_allclose(parts, margin["whole"], atol=1e-3)  # the split is exact
    others = [x for x in stored["heads"] if x.startswith("16.") and x != "16.0"]
    assert len(others) == 8
    assert max(np.mean(stored["heads"][x]["whole"][back]) for x in others) < 0.2
