"""The experiment on the later senders: its heads, its short form, what is stored."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import later_senders

STORED = Path(__file__).parents[2] / "book" / "data" / "later-senders.json"
pytestmark = pytest.mark.unoptimized


def consistent(document, sizes):
    """What holds of the short form and of the long."""
    shape = (len(document["top"]), sizes.of.batch)
    assert np.shape(document["whole"]["scores"]) == shape
    assert {tuple(head) for head in document["receivers"]} == {*sizes.receivers}
    assert {*sizes.receivers} <= {tuple(head) for head in document["top"]}
    assert set(document["senders"]) == set(later_senders.sets(sizes))
    for found in document["senders"].values():
        assert set(found) == {"altogether", *later_senders.ROUTES}
        assert all(np.shape(way["scores"]) == shape for way in found.values())
    assert len(document["of controls"]) == len(document["controls"])
    assert len(document["controls"]) == sizes.controls * len(sizes.later)
    # What comes before a sender is as it is with everything open.
    whole = np.array(document["whole"]["scores"])
    for layer, head in sizes.later:
        found = np.array(document["senders"][f"{layer}.{head}"]["altogether"]["scores"])
        earlier = [n for n, (at, _) in enumerate(document["top"]) if at <= layer]
        np.testing.assert_allclose(found[earlier], whole[earlier], atol=1e-4)


def test_controls_are_other_heads_of_the_layers_of_the_senders():
    sizes = later_senders.Sizes()
    found = later_senders.controls(sizes, 9)
    assert len(set(found)) == 4
    assert not set(found) & set(sizes.later)
    assert sorted(layer for layer, _ in found) == [19, 19, 22, 22]


@pytest.mark.usefixtures("needs_models")
def test_the_short_form(tmp_path):
    path = later_senders.main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path)])
    consistent(json.loads(path.read_text()), later_senders.QUICK)


def test_the_stored_result():
    document = json.loads(STORED.read_text())
    consistent(document, later_senders.Sizes())
    assert document["provenance"]["command"] == later_senders.COMMAND
