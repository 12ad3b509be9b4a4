"""The benchmark of removed heads: its forms of a model, its arithmetic, the stored result."""

import pytest

import pruned
from harness import oracle, report
from tests.benchmarks.paths import BENCHMARKS

STORED = BENCHMARKS / "results" / "pruned-cpu.json"
NAMES = ["whole", "masked", "heads, pad", "heads, repeat", "groups", "whole (again)"]
pytestmark = pytest.mark.unoptimized


def test_what_is_left_of_the_made_up_model():
    variants = pruned.variants_of(pruned.made_up())
    heads = {
        name: [(len(k), p.w_q.shape[1]) for k, p in zip(v.key_heads, attention(v), strict=True)]
        for name, v in variants.items()
    }
    assert heads == {
        "whole": [(2, 6), (2, 6)],
        "masked": [(2, 6), (2, 6)],
        "heads, pad": [(2, 6), (1, 3)],
        "heads, repeat": [(5, 5), (1, 3)],
        "groups": [(2, 6), (1, 3)],
    }
    assert variants["heads, repeat"].key_heads[0].tolist() == [0, 0, 1, 1, 1]
    assert variants["groups"].key_heads[1].tolist() == [0]
    assert variants["heads, pad"].keep.sum() == 8
    assert variants["groups"].keep.sum() == 9  # 30% of four groups is one


def attention(variant):
    return [layer.attention for layer in variant.params.layers]


def test_the_arithmetic_by_hand():
    """D = 12, H = 4, F = 20, V = 11; three query heads and one key head are left of layer 1."""
    subject = pruned.made_up()
    groups = pruned.variants_of(subject)["groups"]
    weights = 12 * 4 * (2 * 3 + 2 * 1)
    prompt = pruned.cost_of(groups, subject.config, pruned.Setting("model", "prefill", 2, 5), [1])
    assert prompt["attention_flops"] == 2 * 10 * weights + 2 * (2 * 5 * 5) * 3 * 8
    assert prompt["attention_bytes"] == 4 * weights
    others = 2 * (3 * 12 * 20), 11 * 12
    assert prompt["model_flops"] - prompt["attention_flops"] == 2 * (10 * others[0] + 2 * others[1])
    step = pruned.cost_of(groups, subject.config, pruned.Setting("model", "decode", 2, 5), [1])
    assert step["attention_flops"] == 2 * 2 * weights + 2 * (2 * 5) * 3 * 8
    assert step["attention_bytes"] == 4 * weights + 4 * 2 * 5 * 8
    assert step["model_bytes"] - step["attention_bytes"] == 4 * sum(others)


def consistent(found, quick):
    """What holds of the quick form and of a result."""
    for case in found["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        assert sorted(rows) == sorted(NAMES)
        for name, row in rows.items():
            assert row["error"] <= case["tolerance"]
            ratio = row["ratio"]
            assert 0 < ratio["lower_quartile"] <= ratio["median"] <= ratio["upper_quartile"]
            smaller = name in ("heads, pad", "groups")
            for what in ("attention_flops", "attention_bytes", "model_flops", "model_bytes"):
                assert row["predicted"][what] <= 1 or not smaller
                assert name not in ("masked", "whole (again)") or row["predicted"][what] == 1
        again = rows["whole (again)"]["ratio"]["median"]
        assert quick or abs(again - 1) <= 0.1
        assert rows["groups"]["heads_left"] < rows["whole"]["heads_left"]


@pytest.mark.parametrize("phase", [pytest.param("prefill", marks=pytest.mark.slow), "decode"])
def test_a_case_of_one_layer(phase):
    setting = pruned.Setting("one layer", phase, 1, 4)
    found = pruned.measure(pruned.made_up(), setting, rounds=2)
    assert found["case"]["label"] == f"one layer, {phase} of 1"
    consistent({"cases": [found]}, quick=True)


def test_a_wrong_output_is_refused(monkeypatch):
    right = pruned.attention_expected
    monkeypatch.setattr(pruned, "attention_expected", lambda *given: right(*given) * 1.01)
    with pytest.raises(oracle.WrongOutput):
        pruned.measure(pruned.made_up(), pruned.Setting("one layer", "prefill", 1, 8), rounds=2)


def test_the_plan_of_a_result():
    plan = pruned.plan(False, None)
    assert len(plan) == 12
    assert all(rounds % 2 == 0 for _, rounds in plan)
    assert {setting[1:3] for setting, _ in plan} == {
        ("prefill", 1), ("prefill", 4), ("decode", 1), ("decode", 8)
    }  # fmt: skip


def test_the_stored_result():
    found = report.read_result(STORED)
    consistent(found, quick=False)
    assert len(found["cases"]) == 12
    for case in found["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        if case["case"]["part"] != "one layer":
            assert rows["whole"]["heads_left"] == 270
            assert rows["heads, pad"]["heads_left"] == rows["groups"]["heads_left"] == 189
