"""Stored times: what follows from them, and what was measured twice.

Times cannot be recomputed: see ``timings.py`` for what is held instead, and for what is not.
"""

import functools

import jax
import pytest

import layouts
from tests.stored.files import TIMES, result
from tests.stored.timings import check_agreement, check_derived, check_self_pairs

pytestmark = pytest.mark.optimized

NAMES = sorted(path.name for path in TIMES.glob("*-cpu.json"))
TIMED = [name for name in NAMES if result(name)["settings"].get("timed", True)]


@functools.cache
def files():
    return {name: result(name) for name in TIMED}


@pytest.mark.parametrize("name", TIMED)
def test_everything_follows_from_the_rounds(name):
    document = files()[name]
    check_derived(document)
    check_self_pairs(document)
    assert document["settings"]["quick"] is False
    assert document["provenance"]["git"]["dirty"] is False
    for case in document["cases"]:
        for row in case["rows"]:
            if row["status"] == "measured":
                assert min(row["seconds_per_round"]) > 0
                assert row.get("error", 0.0) <= case["tolerance"]


def test_what_was_measured_twice_agrees():
    check_agreement(files())


def test_the_operations_of_attention_are_counted_anew():
    for case in files()["attention-cpu.json"]["cases"]:
        c = case["case"]
        length = c["length"]
        pairs = length * (length + 1) // 2 if c["is_causal"] else length**2
        assert case["visible_pairs"] == c["batch"] * pairs
        products = 2 * 2 * c["head_dim"] * c["heads"] * case["visible_pairs"]
        assert case["matmul_flops"] == products * (3 if c["backward"] else 1)


# What is no time: compiled programs and errors are here to be computed again.


@pytest.mark.slow
@pytest.mark.parametrize(
    "label",
    [
        "attention decode B=1 T=1 S=8192",
        "attention reference B=1 T=512",
        "projection compiled B=1 T=128",
        "projection compiled, backward B=1 T=128",
    ],
)
def test_the_stored_programs_are_compiled_again(label):
    """C13 and C33: the products, and with the same JAX the copies, that the reasons rest on."""
    document = files()["layouts-cpu.json"]
    (case,) = (case for case in document["cases"] if case["case"]["label"] == label)
    (setting,) = (setting for setting in layouts.plan(False) if setting.label == label)
    forms = layouts.contenders_of(setting, layouts.inputs_of(setting))
    for row in case["rows"][:-1]:
        found = layouts.count_operations(forms[row["name"]])
        assert found["products"] == row["operations"]["products"], row["name"]
        if document["provenance"]["packages"]["jax"] == jax.__version__:
            assert found["copied_bytes"] == row["operations"]["copied_bytes"], row["name"]
