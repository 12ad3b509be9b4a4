"""Slices of stored trainings, computed again; forgeries that they catch.

What has stored weights is measured again. Of the others a few seeds are trained anew: the first
steps in seconds, whole trainings (slow) in up to a few minutes. All seeds of all runs are what the
experiments themselves compute: see experiments/README.md.
"""

import numpy as np
import pytest

from tests.stored import trainings as again
from tests.stored.files import forged, result

pytestmark = pytest.mark.needs_models  # the text of the addresses

FEW = (("place", 0), ("content", 4))  # two seeds in which the nudged head did not win
EVERY = tuple((kind, seed) for kind in again.NUDGES for seed in range(16))


def test_stored_models_have_the_stored_roles():
    again.check_stored_models(result("emergence.json"))


@pytest.mark.parametrize("which", [FEW, pytest.param(EVERY, marks=pytest.mark.slow)], ids=len)
def test_nudged_heads_trained_again(which):
    again.check_nudges(result("emergence.json"), which)


def test_stored_models_have_the_stored_losses_without_heads():
    """C32, C35: two settings of the first seed, all 256 sets of heads."""
    again.check_dropout(result("gradients-dropout.json"))


@pytest.mark.parametrize("draws", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_noise_is_computed_again(draws):
    """C32: by formula; slow: drawn as often as the experiment does."""
    again.check_noise(result("gradients-dropout.json"), draws)


@pytest.mark.slow
@pytest.mark.parametrize(
    "regime, setting",
    [("scarce text", "none"), ("scarce text", "heads"), ("scarce text", "weights and output"),
     ("scarce text", "all three"), ("whole text", "weights")],
)  # fmt: skip
def test_dropout_trained_again(regime, setting):
    """C32: the first seed of the settings that the claim compares."""
    again.check_dropout_training(result("gradients-dropout.json"), regime, setting)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_the_first_steps_by_hand(dtype):
    again.check_hand_gradients(result("gradients-training.json"), dtype, 4)


@pytest.mark.slow
def test_shared_models_start_as_stored():
    again.check_starts(result("sharing.json"))


@pytest.mark.parametrize(
    "name, steps",
    [("4, width", 100),
     *(pytest.param(name, 800, marks=pytest.mark.slow) for name in ("multi-head", "4, width")),
     *(pytest.param(name, 800, marks=pytest.mark.exhaustive)
       for name in ("4, parameters", "2, width", "2, parameters", "1, width", "1, parameters"))],
)  # fmt: skip
def test_shared_models_trained_again(name, steps):
    """C30."""
    again.check_sharing(result("sharing.json"), name, steps)


@pytest.mark.slow
@pytest.mark.parametrize("check", ["check_gate_base", "check_recovery", "check_learned"])
def test_the_models_of_the_gates_trained_again(check):
    getattr(again, check)(result("gates.json"))


@pytest.mark.slow
def test_the_heads_of_the_gates_trained_again_without_noise(tmp_path):
    again.check_quiet(result("gates-quiet.json"))

    def change(document):
        found = document["gates"]
        found["losses"] = (np.array(found["losses"]) - 0.06).tolist()

    with pytest.raises(AssertionError):
        again.check_quiet(forged("gates-quiet.json", tmp_path, change))


# Forgeries: each has a digest made anew.


def test_nudges_made_to_win_are_caught(tmp_path):
    """The roles of the nudged head and of the leader change places, and the counts with them."""

    def change(document):
        runs = document["seeds"]["runs"]
        for kind, role in (("place", 0), ("content", 1)):
            for heads in runs[f"nudge {kind} 0.2"]["last roles"]:
                leader = int(np.argmax([head[role] for head in heads]))
                heads[0], heads[leader] = heads[leader], heads[0]

    assert max(again.wins(result("emergence.json")).values()) < 16
    document = forged("emergence.json", tmp_path, change)
    assert again.wins(document) == {"place": 16, "content": 16}
    with pytest.raises(AssertionError):
        again.check_nudges(document, FEW)


def test_forged_roles_are_caught(tmp_path):
    def change(document):
        seeds = document["seeds"]
        seeds["roles"] = (0.8 * np.array(seeds["roles"])).tolist()

    with pytest.raises(AssertionError):
        again.check_stored_models(forged("emergence.json", tmp_path, change))


def test_forged_losses_without_heads_are_caught(tmp_path):
    def change(document):
        removal = document["removal"]
        for name, seeds in removal.items():
            whole = np.array(seeds)[:, :1]
            removal[name] = (whole + 0.7 * (np.array(seeds) - whole)).tolist()

    with pytest.raises(AssertionError):
        again.check_dropout(forged("gradients-dropout.json", tmp_path, change))


def test_forged_noise_is_caught(tmp_path):
    def change(document):
        for place in ("weights", "heads", "output"):
            found = document["noise"][place]
            for name in ("variance", "variance_by_formula"):
                found[name] = (1.1 * np.array(found[name])).tolist()

    with pytest.raises(AssertionError):
        again.check_noise(forged("gradients-dropout.json", tmp_path, change), 4)


def test_a_forged_curve_is_caught(tmp_path):
    def change(document):
        row = document["scratch"]["4, width"]
        row["losses"] = (0.97 * np.array(row["losses"])).tolist()

    with pytest.raises(AssertionError):
        again.check_sharing(forged("sharing.json", tmp_path, change), "4, width", 100)


def test_forged_first_steps_are_caught(tmp_path):
    def change(document):
        losses = document["float64"]["losses"]
        losses["manual"] = (1.001 * np.array(losses["manual"])).tolist()

    with pytest.raises(AssertionError):
        again.check_hand_gradients(
            forged("gradients-training.json", tmp_path, change), "float64", 4
        )
