"""The pages on positions and on what lies beyond the trained length: slices of their data."""

import json
from pathlib import Path

import pytest

from experiments import positions
from experiments.heads import windows
from mha_book.models import smollm2

DATA = Path(__file__).parents[2] / "book" / "data" / "positions.json"
SIZES = positions.Sizes()


@pytest.fixture(scope="module")
def stored():
    return json.loads(DATA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def decoder(needs_models):
    return smollm2.load_smollm2()


@pytest.mark.slow
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
