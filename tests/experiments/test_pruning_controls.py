"""The two controls of the experiments on pruning: their short forms, and what is stored."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import gates_quiet, pruning_alike
from experiments.gates_training import Sizes as GateSizes

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form_of_the_orders(tmp_path):
    path = pruning_alike.main(["--quick", "--work", str(tmp_path)])
    found = json.loads(path.read_text())["smollm2"]
    assert np.shape(found["gradient of the ranking"]) == (1, 1, 9)
    assert all(line["heads"] == [3] for line in found["curves"].values())


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form_of_the_gates(tmp_path):
    path = gates_quiet.main(["--quick", "--work", str(tmp_path)])
    found = json.loads(path.read_text())
    assert np.shape(found["gates"]["kept"]) == (1, 2, 1, 4)
    assert np.isfinite(found["gates"]["losses"]).all()


def test_every_order_was_ranked_on_the_same_windows_and_scored_on_the_same_texts():
    document = json.loads((DATA / "pruning-alike.json").read_text())
    sizes = pruning_alike.Sizes()
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    heads = json.loads((DATA / "heads.json").read_text())
    assert sizes.ranking == heads["config"]["ablations"]
    assert sizes.ranking_context == heads["config"]["context"]
    found = document["smollm2"]
    signed = np.array(found["gradient of the ranking"])
    assert signed.shape == (4, 30, 9)
    told = heads["importance"]["taylor on the windows of the ablation"]
    np.testing.assert_allclose(signed.mean(0), told, rtol=2e-3, atol=5e-4)
    for name, line in found["curves"].items():
        assert len(line["heads"]) == len(pruning_alike.points_of(name, sizes)), name
        assert np.shape(line["scores"])[1:] == (2, 24), name
    again = np.array(found["ranked again"])
    assert len({tuple(head) for head in again.tolist()}) == len(again) == 135


def test_both_arms_keep_the_heads_that_were_stored():
    stored, found = (json.loads((DATA / f"{n}.json").read_text()) for n in ("gates", "gates-quiet"))
    assert found["config"] == json.loads(json.dumps(GateSizes()._asdict()))
    assert found["prices"] == stored["learned"]["prices"][1:]
    for arm, keep in gates_quiet.sets_of(stored, 5).items():
        np.testing.assert_array_equal(found[arm]["kept"], keep)
        assert np.shape(found[arm]["losses"]) == (4, 5, 6)
