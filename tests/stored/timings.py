"""What a stored time can be held to, since no time can be measured again.

A time belongs to a machine and an hour. What can be computed is everything that follows from the
raw times of the rounds (medians, quartiles, ratios of the same round, rates), which must be what
the file says; and the same work was measured in several files, by other runs on other hours, which
must agree within a factor of :data:`SPREAD`. So a file whose times were all changed disagrees with
another file, whatever was computed anew. What nothing here can tell: one row that is not measured
elsewhere, changed in every round, with all that follows from it.
"""

import copy
from typing import Any

import numpy as np

from experiments.again import leaves

SPREAD = 1.5
Row = tuple[str, str, str]  # file, label of the case, name of the row

FULL = "T=2048 full forward"

# Twice the same work; how many times as long the second takes, where it is not the same to the dot.
AGREE: list[tuple[Row, Row, float]] = [
    (("attention", FULL, "reference"), ("layouts", "attention reference B=1 T=2048",
                                        "heads first"), 1.0),
    (("attention", FULL, "blockwise"), ("layouts", "attention blockwise B=1 T=2048",
                                        "heads first"), 1.0),
    (("attention", FULL, "attend jax_nn"), ("layouts", "attention jax_nn B=1 T=2048",
                                            "heads first"), 1.0),
    # On another machine, with both lines of JAX.
    (("attention-torch", FULL, "torch"), ("attention-torch-newest", FULL, "torch"), 1.0),
    (("attention-torch", FULL, "blockwise"), ("attention-torch-newest", FULL, "blockwise"), 1.0),
    # By the clock of the processor, on which two threads of a second are two seconds.
    (("layouts", "layer reference B=1 T=512", "product, then split"),
     ("heads", "layer T=512 d_model=512 reference", "reference"), 1.8),
    # A step of SmolLM2 after 512 tokens, by the line through the steps of all lengths.
    (("pruned", "model, decode of 1", "whole"), ("decode", "SmolLM2 after 512", ""), 1.0),
    (("decode", "B=8 N=32 K=8 H=128 S=8192", "cache"), ("decode", "growth at 8192", ""), 1.0),
]  # fmt: skip


def summary(values: Any) -> dict[str, float]:
    """Order statistics, as the files have them."""
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75))
    return {
        "median": median, "lower_quartile": lower, "upper_quartile": upper,
        "minimum": np.min(values), "maximum": np.max(values),
    }  # fmt: skip


def derive(document: dict[str, Any]) -> dict[str, Any]:
    """A result with all that follows from its rounds computed anew."""
    found = copy.deepcopy(document)
    for case in found["cases"]:
        rows = {row["name"]: row for row in case["rows"] if row["status"] == "measured"}
        base = np.array(rows[case["baseline"]]["seconds_per_round"])
        for row in rows.values():
            rounds = np.array(row["seconds_per_round"])
            row["seconds"], row["ratio"] = summary(rounds), summary(rounds / base)
            middle = float(np.median(rounds))
            flops = row.get("matmul_flops", case.get("matmul_flops"))
            if "flops_per_s" in row:
                row["flops_per_s"] = flops / middle
                peak = case["rates"]["matmul_flops_per_s"]
                row["fraction_of_matmul_rate"] = flops / middle / peak
            if "cache_bytes_per_s" in row:
                read = np.array(rows["read"]["seconds_per_round"])
                row["cache_bytes_per_s"] = case["cache_bytes"] / middle
                row["fraction_of_read_rate"] = float(np.median(read / rounds))
                row["cache_over_this"] = summary(base / rounds)
    for line in found.get("growth", {}).values():
        line["seconds"] = np.median(line["seconds_per_round"], axis=1).tolist()
        slope, intercept = np.polyfit(line["lengths"], line["seconds"], 1)
        fitted = slope * np.array(line["lengths"]) + intercept
        line["slope_s_per_token"], line["intercept_s"] = slope, intercept
        line["largest_residual"] = np.max(np.abs(np.array(line["seconds"]) / fitted - 1))
    for part in found.get("sharing", {}).values():
        rounds = np.array(part["seconds_per_round"])
        part["seconds"] = np.median(rounds, axis=1).tolist()
        part["ratio"] = [summary(each / rounds[-1]) for each in rounds]
    return found


def check_derived(document: dict[str, Any]) -> None:
    """Whatever follows from the rounds is what they say."""
    told, found = dict(leaves(document)), dict(leaves(derive(document)))
    assert set(told) == set(found)
    for path, value in told.items():
        if isinstance(value, float):
            assert np.isclose(value, found[path], rtol=1e-9, atol=1e-15), path


def seconds(files: dict[str, dict[str, Any]], row: Row) -> float:
    """The median of a row of a file, of its rounds alone."""
    name, label, wanted = row
    document = files[f"{name}-cpu.json"]
    if label.startswith("SmolLM2 after"):
        line = document["growth"]["SmolLM2"]
        medians = np.median(line["seconds_per_round"], axis=1)
        slope, intercept = np.polyfit(line["lengths"], medians, 1)
        return float(intercept + slope * float(label.split()[-1]))
    if label == "growth at 8192":
        line = document["growth"]["attention"]
        return float(np.median(line["seconds_per_round"][line["lengths"].index(8192)]))
    (case,) = (case for case in document["cases"] if case["case"]["label"] == label)
    rows = {row["name"]: row for row in case["rows"]}
    return float(np.median(rows[wanted]["seconds_per_round"]))


def check_agreement(files: dict[str, dict[str, Any]]) -> None:
    """What was measured in two files took about as long in both."""
    for one, other, factor in AGREE:
        ratio = seconds(files, other) / seconds(files, one)
        assert factor / SPREAD < ratio < factor * SPREAD, (one, other, ratio)


def check_self_pairs(document: dict[str, Any]) -> None:
    """The baseline against itself took as long, in the files' own measure of quiet."""
    for case in document["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        first, again = (
            np.array(rows[name]["seconds_per_round"])
            for name in (case["baseline"], f"{case['baseline']} (again)")
        )
        assert abs(np.median(again / first) - 1) <= 0.1, case["case"]["label"]
