"""The experiment on the heads of real models: its short form, and what is stored."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments import heads
from mha_book.specialization.measures import MEASURES
from mha_book.storage import read_table

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized


def consistent(document, sizes):
    """What holds of the short form and of the long."""
    assert document["config"] == sizes._asdict()
    scores = {name: np.array(score) for name, score in document["importance"].items()}
    assert all(score.shape == (sizes.layers, 9) for score in scores.values())
    assert (scores["gate gradient"] >= abs(scores["taylor"]) - 1e-6).all()
    for name, value in document["rank correlation with ablation"].items():
        assert value == pytest.approx(
            spearmanr(scores[name], scores["ablation"], axis=None).statistic, abs=1e-3
        )
    found = document["induction"]
    assert len(found["controls"]) == len(found["zero controls"]) == sizes.draws
    layers = sorted(layer for layer, _ in found["top"])
    top = {tuple(head) for head in found["top"]}
    for control in found["controls"]:
        assert sorted(layer for layer, _ in control) == layers
        assert not top & {tuple(head) for head in control}
    removal = document["removal"]
    assert removal["heads"] == round(sizes.fraction * sizes.layers * 9)
    for uneven in ("pad", "repeat"):
        assert removal[f"largest difference, {uneven}"] < 1e-5 * removal["largest logit"]


@pytest.mark.usefixtures("world")
def test_the_short_form(tmp_path):
    path = heads.main(["--quick", "--work", str(tmp_path)])
    consistent(json.loads(path.read_text()), heads.QUICK)
    table = read_table(tmp_path / "heads-smollm2.csv")
    assert table["head"].tolist() == list(range(9))
    assert (table["first (low)"] <= table["first"]).all()


def test_controls_have_the_layers_of_the_top_and_none_of_its_heads():
    top = np.array([[0, 1], [0, 2], [3, 0]])
    found = heads.controls(top, (4, 4), 20, seed=1)
    assert len({str(control) for control in found}) > 5
    for control in found:
        assert control[:, 0].tolist() == [0, 0, 3]
        assert set(control[:2, 1]) == {0, 3}
        assert control[2, 1] != 0


def test_the_stored_result():
    document = json.loads((DATA / "heads.json").read_text())
    consistent(document, heads.Sizes())
    assert document["gradient"]["seconds"] < 120
    assert document["gradient"]["peak memory in GiB"] < 4
    found = document["induction"]
    whole = found["whole"]
    for kind in ("zero", "mean"):
        rise = found[kind]["copied"] - whole["copied"]
        others = [each["copied"] - whole["copied"] for each in found[f"{kind} controls"]]
        assert rise > 5  # nats, by the copying alone
        assert np.mean(others) < rise / 10
        assert abs(found[kind]["text"] - whole["text"]) < 0.1
    # The table of the measures and the list of the top agree.
    table = read_table(DATA / "heads-smollm2.csv")
    order = np.argsort(-table["induction on repeats"], kind="stable")[: heads.Sizes().top]
    wanted = np.stack([table["layer"], table["head"]], -1)[order].tolist()
    assert sorted(found["top"]) == sorted(wanted)


@pytest.mark.parametrize("model, number", [("smollm2", 270), ("minilm", 72)])
def test_the_stored_tables(model, number):
    table = read_table(DATA / f"heads-{model}.csv")
    assert len(table["layer"]) == number
    absent = {"special"} if model == "smollm2" else set()
    for name, measure in MEASURES.items():
        if name in absent or np.isnan(table.get(name, np.nan)).all():
            assert name in ("special", "next")
            continue
        value, low, high = (table[f"{name}{which}"] for which in ("", " (low)", " (high)"))
        assert measure.lowest - 1e-6 <= value.min()
        if isinstance(measure.highest, float):
            assert value.max() <= measure.highest + 1e-5
        assert ((low <= value + 1e-5) & (value <= high + 1e-5)).all()
        assert len(set(table[f"{name} (uninformed)"])) == 1
