"""Slices of what is stored of SmolLM2 and MiniLM, computed again; forgeries that they catch.

A slice is computed from the packaged weights and the addresses, by the code of the experiment. It
takes seconds; the slow ones take up to a minute, and all 270 ablations half an hour (exhaustive).
Of each experiment one slice is computed daily.
"""

import numpy as np
import pytest

from mha_book.storage import read_table
from tests.stored import trained_heads as again
from tests.stored.files import DATA, forged, result

pytestmark = pytest.mark.needs_models

QUICK = {
    "heads.json": (
        again.check_ablation, again.check_scores_of_weights, again.check_induction,
        again.check_removal,
    ),
    "pruning.json": (
        again.check_whole, again.check_curves, again.check_longer, again.check_together,
        again.check_sentences, again.check_sentence_ablation,
    ),
    "pruning-alike.json": (again.check_alike,),
    "gates.json": (again.check_before_training,),
    "emergence.json": (again.check_ranks,),
    "quantization.json": (again.check_moved,),
    "heads-in-use.json": (again.check_closed, again.check_routes),
    "later-senders.json": (again.check_later,),
    "cache-bits.json": (again.check_cache_bits,),
    "papers.json": (again.check_few_keys,),
}  # fmt: skip
DAILY = {
    again.check_scores_of_weights, again.check_curves, again.check_before_training,
    again.check_ranks, again.check_removal, again.check_routes, again.check_later,
}  # fmt: skip


@pytest.mark.parametrize(
    "name, check",
    [
        pytest.param(name, check, marks=[pytest.mark.slow] * (check not in DAILY))
        for name, checks in QUICK.items()
        for check in checks
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_slice_computed_again(name, check):
    check(result(name))


@pytest.mark.slow
@pytest.mark.parametrize("check", [again.check_merged_minilm, again.check_heads_of_a_token])
def test_a_longer_slice_for_the_ledger_of_papers(check):
    check(result("papers.json"))


@pytest.mark.slow
def test_all_gradients_computed_again():
    again.check_gradients(result("heads.json"))


@pytest.mark.exhaustive
def test_all_ablations_computed_again():
    again.check_all_ablations(result("heads.json"))


@pytest.mark.parametrize("layers", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_the_table_of_smollm2_computed_again(layers, tmp_path):
    found = read_table(again.measured_smollm2(layers, tmp_path))
    again.check_table(found, read_table(DATA / "heads-smollm2.csv"))


def test_the_table_of_minilm_computed_again(tmp_path):
    found, told = read_table(again.measured_minilm(tmp_path)), DATA / "heads-minilm.csv"
    again.check_table(found, read_table(told))
    forged_table = read_table(told)
    forged_table["special"] = forged_table["special"] * 0.9
    with pytest.raises(AssertionError, match="special"):
        again.check_table(found, forged_table)


# Forgeries: each has a digest made anew.


def times(value, factor):
    return (np.array(value) * factor).tolist()


def test_ablation_importances_times_seven_tenths_are_caught(tmp_path):
    def change(document):
        scores = document["importance"]
        scores["ablation"] = times(scores["ablation"], 0.7)

    with pytest.raises(AssertionError):
        again.check_ablation(forged("heads.json", tmp_path, change))


def enlarged(whole, scores):
    """Three times the change from the whole model, in loss and accuracy."""
    return (np.array(whole) + 3 * (np.array(scores) - np.array(whole))).tolist()


@pytest.mark.parametrize("which", ["curves", "longer", "sentences", "together"])
def test_pruning_changes_times_three_are_caught(which, tmp_path):
    def change(document):
        found = document["smollm2"]
        if which == "curves":
            for line in found["curves"].values():
                line["scores"] = enlarged(found["whole"], line["scores"])
        elif which == "longer":
            for name in set(found["longer"]) - {"whole"}:
                found["longer"][name] = enlarged(found["longer"]["whole"], found["longer"][name])
        elif which == "sentences":
            for line in document["minilm"]["curves"].values():
                line["scores"] = enlarged(1.0, line["scores"])
        else:
            found["together"]["alone"] = times(found["together"]["alone"], 3)

    check = {
        "curves": again.check_curves, "longer": again.check_longer,
        "sentences": again.check_sentences, "together": again.check_together,
    }[which]  # fmt: skip
    with pytest.raises(AssertionError):
        check(forged("pruning.json", tmp_path, change))


def test_a_smaller_harm_of_pruning_is_caught(tmp_path):
    """The other way round: the loss without heads moved to a third of its change."""

    def change(document):
        found = document["smollm2"]
        for name in set(found["longer"]) - {"whole"}:
            scores, whole = np.array(found["longer"][name]), np.array(found["longer"]["whole"])
            found["longer"][name] = (whole + (scores - whole) / 3).tolist()

    with pytest.raises(AssertionError):
        again.check_longer(forged("pruning.json", tmp_path, change))


@pytest.mark.parametrize("factor", [1 / 3, 3])
def test_other_changes_on_passages_of_one_length_are_caught(factor, tmp_path):
    def change(document):
        found = document["smollm2"]
        whole = np.array(found["whole"])
        for line in found["curves"].values():
            line["scores"] = (whole + factor * (np.array(line["scores"]) - whole)).tolist()

    with pytest.raises(AssertionError):
        again.check_alike(forged("pruning-alike.json", tmp_path, change))


def test_induction_heads_made_more_needed_are_caught(tmp_path):
    def change(document):
        document["induction"]["zero"]["copied"] += 1.0

    with pytest.raises(AssertionError):
        again.check_induction(forged("heads.json", tmp_path, change))


def test_a_smaller_loss_before_training_is_caught(tmp_path):
    def change(document):
        found = document["smollm2"]["removed heads"]
        found["before"] = times(found["before"], 0.98)

    with pytest.raises(AssertionError):
        again.check_before_training(forged("gates.json", tmp_path, change))


def test_kinds_less_moved_by_rounding_are_caught(tmp_path):
    """The excess of the draws half as far from that of the stored weights."""

    def change(document):
        whole = document["stored"]["excess"]
        for draw in document["draws"]:
            for kind, found in draw["excess"].items():
                draw["excess"][kind] = ((np.array(found) + np.array(whole[kind])) / 2).tolist()

    with pytest.raises(AssertionError):
        again.check_moved(forged("quantization.json", tmp_path, change))


def test_a_route_made_wider_is_caught(tmp_path):
    def change(document):
        keys = document["routes"]["looking back"][0]["keys"]
        keys["scores"] = times(keys["scores"], 1.5)

    with pytest.raises(AssertionError):
        again.check_routes(forged("heads-in-use.json", tmp_path, change))


@pytest.mark.parametrize("name", ["19.3", "first and later"])
def test_a_later_sender_made_weaker_is_caught(name, tmp_path):
    def change(document):
        keys = document["senders"][name]["keys"]
        keys["scores"] = times(keys["scores"], 1.1)

    with pytest.raises(AssertionError):
        again.check_later(forged("later-senders.json", tmp_path, change))


@pytest.mark.parametrize("way, part", [("mean", "copied"), ("zero", "text")])
def test_heads_made_less_needed_are_caught(way, part, tmp_path):
    def change(document):
        found = document["closed"]
        whole = np.array(found["whole"][part])
        found[way][part] = (whole + 0.5 * (np.array(found[way][part]) - whole)).tolist()

    with pytest.raises(AssertionError):
        again.check_closed(forged("heads-in-use.json", tmp_path, change))


@pytest.mark.parametrize("name", ["recalled", "largest", "agreement"])
def test_shares_and_scores_made_larger_are_caught(name, tmp_path):
    def change(document):
        found = document["keys of a query"]
        found[name] = times(found[name], 1.05)

    with pytest.raises(AssertionError, match=name):
        again.check_few_keys(forged("papers.json", tmp_path, change))


@pytest.mark.parametrize("scheme, name", [("8 bits", "loss"), ("4 bits, keys by feature", "key")])
def test_a_rounded_cache_that_loses_less_is_caught(scheme, name, tmp_path):
    def change(document):
        row = document["found"][scheme]
        row[name] = times(row[name], 0.99)

    with pytest.raises(AssertionError, match=scheme):
        again.check_cache_bits(forged("cache-bits.json", tmp_path, change))
