"""The evidence for the claim of the chapter on what comes after pruning."""

import json
from pathlib import Path

import numpy as np

from mha_book.specialization.intervals import bootstrap_interval
from tests.book.verdicts import decides

DATA = Path(__file__).parents[2] / "book" / "data"
TIMES = DATA.parents[1] / "benchmarks" / "results" / "pruned-cpu.json"
ORDERS = {
    "gate gradient, 24 windows": "gate gradient",
    "ranked again": "iterative",
    "ablation": "ablation",
}
"""Orders of 30% of the heads on long passages, and their names on short ones."""


def read(name):
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def interval(values):
    """The mean over texts, and where 95% of the means lie when texts are drawn anew."""
    values = np.asarray(values)
    return values.mean(), *bootstrap_interval(values, np.random.default_rng(1))


def changes(found, name, kind):
    """The change at 30% removed, text by text: of the loss (0), of the accuracy (1)."""
    line = found["smollm2"]["curves"][name]
    place = line["heads"].index(81)
    return np.array(line["scores"])[place, kind] - np.array(found["smollm2"]["whole"])[kind]


def test_c25_one_model_loses_more_in_long_passages_and_short_ones_do_not_tell():
    long, short = read("pruning-alike"), read("pruning")
    assert (long["config"]["context"], short["config"]["context"]) == (129, 33)
    base = np.mean(long["smollm2"]["whole"][0])
    for name, twin in ORDERS.items():
        assert interval(100 * changes(long, name, 1))[2] < -1, name  # points, of about 32
        assert interval(changes(long, name, 0) / base)[1] > 0.05, name
        # At 33 tokens the interval holds a loss of less than a point and one of more.
        low, high = interval(100 * changes(short, twin, 1))[1:]
        assert low < -1 < high, name
    # No form is 1.3 times as fast, on the one machine where they were timed.
    found = json.loads(TIMES.read_text(encoding="utf-8"))
    assert found["provenance"]["device"] == "cpu"
    cases = [case for case in found["cases"] if case["case"]["part"] == "model"]
    assert len(cases) == 4
    forms = [row for case in cases for row in case["rows"] if "again" not in row["name"]]
    assert min(row["ratio"]["median"] for row in forms) > 1 / 1.3
    decides("C25", "undecided")
