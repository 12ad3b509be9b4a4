"""The evidence for what the chapter on attention sinks says."""

import numpy as np

from mha_book.specialization.intervals import mean_interval
from mha_book.storage import read_result
from tests.book.extensions import ROOT
from tests.book.verdicts import decides

STORED = read_result(ROOT / "book" / "data" / "sinks.json")
TRAINED = read_result(ROOT / "book" / "data" / "sinks-training.json")


def bounds(values):
    """The ends of the 95% interval of a mean."""
    mean, half = mean_interval(values)
    return mean - half, mean + half


def rise(name, part="later"):
    return np.array(STORED[part][name]) - np.array(STORED[part]["whole"])


def of_cut(name, part):
    found, whole = STORED["cut"][name][part], STORED["cut"]["whole"][part]
    return np.array(found) - np.array(whole)


def streamed(name):
    """Loss above all keys once 64 queries have passed the window."""
    gap = np.array(STORED["stream"][name]) - np.array(STORED["stream"]["all"])
    return gap[:, 6:].mean(1)


def test_the_position_is_enough_for_a_sink_and_the_token_counts():
    mass = {name: np.array(found["by text"]) for name, found in STORED["mass"].items()}
    even = np.mean(1 / (np.arange(8, STORED["config"]["length"]) + 1))
    for found in mass.values():
        assert bounds(found[:, 0])[0] > 5 * even
    plain = mass["speeches, special first"][:, 0]
    low, high = bounds(mass["speeches, none"][:, 0] - plain)
    assert -0.02 < low < high < 0.03
    low, high = bounds(mass["speeches, special second"].sum(1) - plain)
    assert -0.05 < low < high < 0.05
    low, _ = bounds(np.subtract(*mass["speeches, special second"].T))
    assert low > 0.05
    decides("P60", "undecided")


def test_streaming_fails_without_the_first_token_and_not_with_it():
    assert bounds(streamed("window"))[0] > 0.6
    assert bounds(streamed("first"))[1] < 0.1
    assert bounds(streamed("ordinary") - streamed("first"))[0] > 0.5
    low, high = bounds(streamed("first four") - streamed("first"))
    assert -0.02 < low < high < 0.02
    decides("P61", "undecided")


def test_the_sink_is_a_constant_key_with_a_value_that_is_needed():
    assert STORED["constants"]["difference"] < 1e-3
    assert bounds(rise("no sink"))[0] > 1
    assert bounds(rise("value 0"))[0] > 0.5
    assert bounds(rise("logits"))[0] > 0.6
    assert 0 < bounds(rise("logits and value"))[0] < bounds(rise("logits and value"))[1] < 0.1
    assert bounds(rise("value 0, upper layers") - rise("value 0, lower layers"))[0] > 0.3
    # Without the first key the text begins at the second token (test_reading_models.py),
    # which takes the mass.
    assert bounds(rise("no sink", "sink"))[1] < 0.1
    assert bounds(np.array(STORED["mass"]["speeches, none"]["by text"])[:, 0])[0] > 0.3
    decides("P62", "undecided")


def test_a_quarter_of_the_key_heads_copies_if_chosen_by_the_gradient():
    chosen = of_cut("gradient, with sink", "copied")
    assert bounds(chosen)[1] < 0
    for draw in range(STORED["config"]["draws"]):
        assert bounds(of_cut(f"random {draw}, with sink", "copied"))[0] > 5
    assert bounds(of_cut("far weight, with sink", "copied"))[0] > 5
    assert bounds(of_cut("none, with sink", "text"))[1] < 0.5
    assert bounds(of_cut("none, with sink", "copied"))[0] > 5
    assert bounds(of_cut("none, without", "text") - of_cut("none, with sink", "text"))[0] > 1
    decides("P63", "holds if")


def tiny(name):
    """Models of the same seed less those with softmax, by form; mass is the share of position 0."""
    found = {form: np.array(x[name]) for form, x in TRAINED["forms"].items()}
    if name == "mass":
        found = {form: x.mean((1, 2)) for form, x in found.items()}
    if name == "largest":
        found = {form: x[:, -1, 1] for form, x in found.items()}
    return {form: x - found["softmax"] for form, x in found.items()}


def softmax_grows_hardly_a_sink():
    low, high = bounds(np.array(TRAINED["forms"]["softmax"]["mass"]).mean((1, 2)))
    return TRAINED["even"] < low < high < 0.1


def test_what_prevents_sinks_is_not_decided_by_tiny_models():
    assert softmax_grows_hardly_a_sink()
    low, high = bounds(tiny("mass")["gate"])
    assert low < 0 < high
    assert bounds(tiny("loss")["gate"])[1] < 0
    assert bounds(tiny("largest")["gate"])[1] < 0
    decides("P64", "undecided")


def test_a_learned_logit_is_hardly_used_by_tiny_models():
    assert softmax_grows_hardly_a_sink()
    assert bounds(np.array(TRAINED["forms"]["logit"]["taken"]).mean((1, 2)))[1] < 0.1
    for name in ("mass", "loss"):
        low, high = bounds(tiny(name)["logit"])
        assert low < 0 < high
    for name in ("logits", "logits, fitted", "one logit", "logit 0"):
        assert bounds(rise(name, "sink"))[0] > 0.05
    decides("P65", "undecided")


def test_sigmoid_attention_does_not_clearly_differ_in_tiny_models():
    assert softmax_grows_hardly_a_sink()
    low, high = bounds(tiny("mass")["sigmoid"])
    assert low < 0 < high
    decides("P66", "undecided")
