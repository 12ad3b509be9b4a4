"""The experiment on positions: its short form, its schemes, freezing, what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import positions
from mha_book.models import smollm2
from tests.models.small import small_smollm2

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized


def consistent(document, sizes):
    """What holds of the short form and of the long."""
    lengths = [sizes.length] * sizes.whole + [sizes.length // 2] * (sizes.texts - sizes.whole)
    for losses in document["losses"].values():
        assert [len(x) * sizes.bucket for x in losses] == lengths
    for scheme in positions.SCHEMES:
        assert np.shape(document["gaps"][scheme]) == (len(sizes.gaps), sizes.short_texts)
    assert len(document["texts"]) == sizes.texts
    for head in document["heads"].values():
        if "difference" in head:
            assert len(head["difference"]) == sizes.windows
            assert max(head["difference"]) < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("needs_models")
def test_the_short_form(tmp_path):
    path = positions.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    consistent(document, positions.QUICK)
    assert positions.main(["--quick", "--work", str(tmp_path)]) == path  # nothing is read again


def test_the_stored_result():
    document = json.loads((DATA / "positions.json").read_text())
    consistent(document, positions.Sizes())
    assert document["provenance"]["command"] == positions.COMMAND


def test_losses_by_pieces_are_those_of_the_model():
    params, config, *_ = small_smollm2()
    ids = jnp.arange(12, dtype=jnp.int32) % config.vocab_size
    angles = positions.scheme_angles("plain", jnp.arange(12), config, 4.0)
    got = positions.long_losses(params, ids, angles, config=config, chunk=3)
    wanted = smollm2.token_losses(params, ids[None], config=config)[0]
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_schemes_move_the_pairs_that_they_say():
    config = smollm2.CONFIG
    angles = {
        way: np.asarray(positions.scheme_angles(way, jnp.array([1]), config, 4.0)[0])
        for way in positions.SCHEMES
    }
    np.testing.assert_allclose(angles["interpolation"], angles["plain"] / 4)
    assert angles["ntk"][0] == angles["plain"][0]
    assert angles["ntk"][-1] == pytest.approx(angles["plain"][-1] / 4, rel=1e-4)


def test_frozen_scores_by_hand():
    """Two keys besides the first, one pair of features, a quarter turn a position."""
    query = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    key = jnp.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    angles = jnp.arange(3.0)[:, None] * jnp.pi / 2
    found = positions.frozen(query, key, angles)
    scale = np.sqrt(2)

    def weights(*scores):
        return np.exp(scores) / np.exp(scores).sum()

    # Query 2, (0, 1), without rotation: keys score 0, 0 and 2.
    np.testing.assert_allclose(found["rotation frozen"][2], weights(0, 0, 2 / scale), rtol=1e-5)
    # Mean query (1/2, 1/2), mean key (1, 1): 1 at the same place, 0 a quarter turn apart.
    np.testing.assert_allclose(found["content frozen"][2], weights(0, 0, 1 / scale), rtol=1e-5)
    # Query 2 turned by half a turn, (0, -1); key 1 turned to (0, 2), key 2 to (0, -2).
    np.testing.assert_allclose(found["whole"][2], weights(0, -2 / scale, 2 / scale), rtol=1e-5)


def test_the_margin_is_the_sum_of_its_parts():
    keys = jax.random.split(jax.random.key(0), 2)
    query, key = (jax.random.normal(k, (7, 4)) for k in keys)
    angles = positions.rotary_angles(jnp.arange(7), 4)
    found = positions.margin(query, key, angles)
    scores = positions.rotate(query, angles) @ positions.rotate(key, angles).T / 2
    by_hand = [
        scores[i, i - 1] - np.mean([scores[i, j] for j in range(1, i + 1) if j != i - 1])
        for i in range(3, 7)
    ]
    assert found["whole"] == pytest.approx(np.mean(by_hand), abs=1e-5)
    parts = sum(float(x) for name, x in found.items() if name != "whole")
    assert parts == pytest.approx(float(found["whole"]), abs=1e-5)
