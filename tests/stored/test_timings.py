"""Stored times: what follows from them, what was measured twice, and forgeries of them.

Times cannot be recomputed: see ``timings.py`` for what is held instead, and for what is not.
"""

import copy
import functools

import jax
import numpy as np
import pytest

from tests.stored.files import TIMES, forged, result
from tests.stored.timings import (
    AGREE,
    check_agreement,
    check_derived,
    check_self_pairs,
    derive,
    seconds,
)

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
    for case in document["cases"]:
        for row in case["rows"]:
            if row["status"] == "measured":
                assert min(row["seconds_per_round"]) > 0
                assert row.get("error", 0.0) <= case["tolerance"]


def test_what_was_measured_twice_agrees():
    check_agreement(files())


@pytest.mark.parametrize("name", ["attention-cpu.json"])
def test_operations_are_counted_anew(name):
    for case in files()[name]["cases"]:
        c = case["case"]
        if "layer" in c["label"]:
            continue
        length = c["length"]
        pairs = length * (length + 1) // 2 if c["is_causal"] else length**2
        assert case["visible_pairs"] == c["batch"] * pairs
        products = 2 * 2 * c["head_dim"] * c["heads"] * case["visible_pairs"]
        assert case["matmul_flops"] == products * (3 if c["backward"] else 1)


def test_the_bytes_of_a_step_follow_from_the_sizes_of_the_model():
    """Of SmolLM2: what a step reads, and that one write makes the program copy whole caches."""
    (case,) = files()["step-cpu.json"]["cases"]
    layers, heads, kv_heads, width, slots = 30, 9, 3, 64, case["case"]["length"]
    d_model, hidden, vocabulary = heads * width, 1536, 49152
    assert case["cache_bytes"] == 4 * (
        layers * 2 * kv_heads * width * slots + layers
    )  # a length each
    attention = 2 * d_model * d_model + 2 * d_model * kv_heads * width
    layer = attention + 3 * d_model * hidden + 2 * d_model
    assert case["weight_bytes"] == 4 * (vocabulary * d_model + layers * layer + d_model)
    held = {row["name"]: row["temp_bytes"] for row in case["rows"] if "temp_bytes" in row}
    one_layer = case["cache_bytes"] / layers
    assert held["step, one write"] - held["step"] > one_layer


# Forgeries: each has a digest made anew, and passes for a whole file.


def twice(row):
    row["seconds_per_round"] = [2 * x for x in row["seconds_per_round"]]


def everything(document):
    """All times of a file, the lines and the sharing of the decoding too."""
    for case in document["cases"]:
        for row in case["rows"]:
            if row["status"] == "measured":
                twice(row)
    for part in ("growth", "sharing"):
        for found in document.get(part, {}).values():
            doubled = 2 * np.array(found["seconds_per_round"])
            found["seconds_per_round"] = doubled.tolist()


def replaced(document, found):
    document.clear()
    document.update(found)


@pytest.mark.parametrize("name", TIMED)
def test_forged_medians_twice_as_long_are_caught(name, tmp_path):
    def change(document):
        for case in document["cases"]:
            for row in case["rows"]:
                if row["status"] == "measured":
                    row["seconds"] = {key: 2 * value for key, value in row["seconds"].items()}

    with pytest.raises(AssertionError):
        check_derived(forged(name, tmp_path, change))


@pytest.mark.parametrize("name", TIMED)
def test_forged_rounds_twice_as_long_are_caught(name, tmp_path):
    with pytest.raises(AssertionError):
        check_derived(forged(name, tmp_path, everything))


@pytest.mark.parametrize("name", TIMED)
def test_a_file_twice_as_slow_in_all_its_numbers_is_caught(name, tmp_path):
    """The careful forger: every round, and everything that follows from them."""

    def change(document):
        everything(document)
        replaced(document, derive(document))

    found = forged(name, tmp_path, change)
    check_derived(found)  # nothing inside the file tells
    with pytest.raises(AssertionError):
        check_agreement(files() | {name: found})


@pytest.mark.parametrize("name", TIMED)
def test_a_baseline_twice_as_slow_in_all_its_numbers_is_caught(name, tmp_path):
    def change(document):
        for case in document["cases"]:
            (row,) = (row for row in case["rows"] if row["name"] == case["baseline"])
            twice(row)
        replaced(document, derive(document))

    with pytest.raises(AssertionError):
        check_self_pairs(forged(name, tmp_path, change))


@pytest.mark.parametrize("number", range(len(AGREE)))
def test_each_pair_of_files_tells(number):
    """A pair that would let twice the time pass would be no check."""
    for which in (0, 1):
        name = f"{AGREE[number][which][0]}-cpu.json"
        document = copy.deepcopy(files()[name])
        everything(document)
        changed = files() | {name: document}
        one, other, factor = AGREE[number]
        if one[0] != other[0]:
            ratio = seconds(changed, other) / seconds(changed, one) / factor
            assert not 1 / 1.5 < ratio < 1.5


# What is no time: compiled programs and errors are here to be computed again.


def same_versions(document):
    return document["provenance"]["packages"]["jax"] == jax.__version__


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
    import layouts

    document = files()["layouts-cpu.json"]
    (case,) = (case for case in document["cases"] if case["case"]["label"] == label)
    (setting,) = (setting for setting in layouts.plan(False) if setting.label == label)
    forms = layouts.contenders_of(setting, layouts.inputs_of(setting))
    for row in case["rows"][:-1]:
        found = layouts.count_operations(forms[row["name"]])
        assert found["products"] == row["operations"]["products"], row["name"]
        if same_versions(document):
            assert found["copied_bytes"] == row["operations"]["copied_bytes"], row["name"]


def check_errors(document):
    """Errors against float64 in the shortest cases, of the rows that are this package's own."""
    import precision
    from peers.attention import contenders

    chosen = {"reference", "blockwise"}
    ours = [one for one in contenders(gpu=False) if one.name in chosen]
    for case in document["cases"]:
        c = {name: value for name, value in case["case"].items() if name != "label"}
        if c["length"] > 128:
            continue
        found = precision.measure(precision.Case(**c), ours)
        stored = {row["name"]: row for row in case["rows"]}
        for row in found["rows"]:
            for part, errors in row["errors"].items():
                told = stored[row["name"]]["errors"][part]
                for kind, value in errors.items():
                    assert value == pytest.approx(told[kind], rel=0.4), (c, row["name"], part)


def test_stored_errors_are_computed_again():
    check_errors(result("precision-cpu.json"))


def test_forged_errors_are_caught(tmp_path):
    def change(document):
        for case in document["cases"]:
            for row in case["rows"]:
                for errors in row.get("errors", {}).values():
                    errors["rms"] /= 2

    with pytest.raises(AssertionError):
        check_errors(forged("precision-cpu.json", tmp_path, change))
