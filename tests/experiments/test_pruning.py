"""The experiment on removing heads: its short form, its parts, and what is stored."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments import pruning

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized


def consistent(document, sizes):
    """What holds of the short form and of the long."""
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    for model, layers, heads in (
        ("smollm2", sizes.layers, 9),
        ("minilm", sizes.sentence_layers, 12),
    ):
        found, total = document[model], layers * heads
        for name, line in found["curves"].items():
            scores = np.array(line["scores"])  # (points, loss and accuracy, texts)
            assert scores.shape == (len(line["heads"]), 2, sizes.texts), name
            assert line["heads"] == sorted(line["heads"])
            assert 0 < line["heads"][0] <= line["heads"][-1] <= total
            assert (scores[:, 1] >= 0).all()
            assert (scores[:, 1] <= 1).all()
            if "groups" in name:
                assert not (np.array(line["heads"]) % pruning.GROUP).any()
            if model == "minilm":
                assert (abs(scores[:, 0]) <= 1 + 1e-5).all()
    single, groups = (
        np.array(document["smollm2"]["orders"][name]) for name in ("iterative", "iterative groups")
    )
    for order in (single, groups):
        assert len({tuple(head) for head in order}) == len(order)
    keys = [{tuple(head // (1, pruning.GROUP)) for head in part} for part in
            groups.reshape(-1, pruning.GROUP, 2)]  # fmt: skip
    assert all(len(key) == 1 for key in keys)
    importance = document["minilm"]["importance"]
    for name, value in document["minilm"]["rank correlation with ablation"].items():
        found = spearmanr(importance[name], importance["ablation"], axis=None).statistic
        assert value == pytest.approx(found, abs=5e-3)
    # A first order that vanishes: the whole model is as near to itself as can be.
    assert np.abs(importance["taylor"]).max() < 1e-4 * np.max(importance["curvature"])
    together = document["smollm2"]["together"]
    assert np.shape(together["alone"]) == (sizes.missed, sizes.texts)
    assert max(len(each["members"]) for each in together["sets"]) == sizes.missed


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form(tmp_path):
    path = pruning.main(["--quick", "--work", str(tmp_path)])
    first = json.loads(path.read_text())
    consistent(first, pruning.QUICK)
    kept = json.loads((tmp_path / "pruning-smollm2.json").read_text())
    whole = np.packbits(np.ones((1, 9), bool)).tobytes().hex()
    np.testing.assert_allclose(kept["values"][whole], first["smollm2"]["whole"], rtol=1e-3)


def test_a_value_is_computed_once_and_kept(tmp_path):
    def count(keep):
        return [keep.sum(), 0.5]

    one, other = np.ones((2, 3), bool), np.eye(2, 3, dtype=bool)
    first = pruning.Remembered(count, tmp_path / "kept.json", (1, 2))
    assert first(one).tolist() == first(one).tolist() == [6.0, 0.5]
    assert first(other).tolist() == [2.0, 0.5]
    assert first.computed == 2
    again = pruning.Remembered(None, tmp_path / "kept.json", (1, 2))
    assert again(other).tolist() == [2.0, 0.5]
    assert again.computed == 0
    with pytest.raises(AssertionError, match="of another experiment"):
        pruning.Remembered(count, tmp_path / "kept.json", (1, 3))


@pytest.mark.usefixtures("world")
def test_sentences_are_of_middling_length_and_of_one_split():
    train, validation = (pruning.sentences(split, 3, 4) for split in ("train", "validation"))
    assert len(train) == len(set(train)) == 12
    assert not set(train) & set(validation)
    assert all(60 < len(sentence) < 240 for sentence in train + validation)


def test_the_stored_result():
    consistent(json.loads((DATA / "pruning.json").read_text()), pruning.Sizes())
