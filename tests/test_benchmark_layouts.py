"""The benchmark of layouts and projections: outputs, work, counted operations, a quick run."""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SIBLINGS = ("harness", "layout_cases", "layouts", "limits", "oracle", "provenance", "report")
STORED = BENCHMARKS / "results" / "layouts-cpu.json"
pytestmark = pytest.mark.unoptimised
SETTINGS = [
    ("attention", "reference", 5, 7),
    ("attention", "jax_nn", 5, 5),
    ("attention", "blockwise", 5, 7),
    ("attention", "decode", 1, 7),
    ("layer", "reference", 5, 5),
    ("layer", "jax_nn", 5, 5),
    ("projection", "compiled", 5, 5),
    ("projection", "op by op", 5, 5),
    ("projection", "compiled, backward", 5, 5),
]


@pytest.fixture(scope="module")
def modules():
    """The modules as the script imports them; gone afterwards."""
    sys.path.insert(0, str(BENCHMARKS))
    loaded = {name: importlib.import_module(name) for name in SIBLINGS}
    yield loaded
    sys.path.remove(str(BENCHMARKS))
    for name in SIBLINGS:
        sys.modules.pop(name, None)


def setting_of(modules, *given, batch=2, d_model=12, heads=3):
    return modules["layout_cases"].Setting(*given, batch=batch, d_model=d_model, heads=heads)


@pytest.mark.parametrize("given", SETTINGS, ids=lambda given: f"{given[0]}, {given[1]}")
def test_every_form_against_float64(modules, given):
    cases, setting = modules["layout_cases"], setting_of(modules, *given)
    inputs = cases.inputs_of(setting)
    expected = cases.expected_of(setting, inputs)
    runs = cases.contenders_of(setting, inputs)
    assert len(runs) >= 3
    for name, run in runs.items():
        outputs = cases.outputs_of(setting, name, run())
        assert modules["harness"].largest_error(outputs, expected) < 2e-5, name


def test_the_gradients_of_a_projection(modules):
    """The float64 gradients, against automatic differentiation of one einsum."""
    cases = modules["layout_cases"]
    inputs = cases.inputs_of(setting_of(modules, "projection", "compiled, backward", 5, 5))
    expected = cases.expected_of(
        setting_of(modules, "projection", "compiled, backward", 5, 5), inputs
    )

    def projected(x, *weights):
        return tuple(jnp.einsum("btd,dnh->bnth", x, w) for w in weights)

    x, *arrays = map(jnp.asarray, inputs)
    gradients = jax.jit(lambda: jax.vjp(projected, x, *arrays[:3])[1](tuple(arrays[3:])))()
    assert modules["harness"].largest_error(gradients, expected[3:]) < 2e-5


def test_work_is_that_of_the_formulas(modules):
    from mha_book.costs import attention_size, forward_matmul_flops, projection_matmul_flops

    flops_of, size = modules["layout_cases"].flops_of, attention_size(12, 3)
    whole = forward_matmul_flops(size, token_count=14, pair_count=2 * 49)
    projections = projection_matmul_flops(size, token_count=14)
    assert flops_of(setting_of(modules, "layer", "reference", 7, 7)) == whole
    assert flops_of(setting_of(modules, "attention", "reference", 7, 7)) == whole - projections
    one = flops_of(setting_of(modules, "projection", "compiled", 7, 7))
    assert 4 * one == 3 * projections
    assert flops_of(setting_of(modules, "projection", "compiled, backward", 7, 7)) == 3 * one


@pytest.mark.parametrize("form", ["compiled", "op by op"])
def test_operations_are_counted(modules, form):
    cases, setting = modules["layout_cases"], setting_of(modules, "projection", form, 5, 5)
    runs = cases.contenders_of(setting, cases.inputs_of(setting))
    counts = {name: modules["layouts"].count_operations(run) for name, run in runs.items()}
    if form == "op by op":
        assert counts["loop over heads"]["calls"] > 9
        assert counts["one product, cut last"]["calls"] == 5  # reshape, product, both again, cut
    else:
        products = [counts[name]["products"] for name in runs]
        assert products == [1, 1, 3, 9]


def test_a_copy_is_counted_with_its_bytes(modules):
    text = "  %copy.1 = f32[2,3,5]{2,1,0} copy(%x)\n ROOT %copy.2 = s32[] copy(%i)\n"
    text += "%d = bf16[4]{0} copy(%y), metadata={}\n %dot.1 = f32[2,2]{1,0} dot(%a, %b)\n"

    class Program:
        def lower(self):
            return self

        compile = lower

        def as_text(self):
            return text

    class Run:
        func, args, keywords = Program(), (), {}

    counts = modules["layouts"].count_operations(Run())
    assert counts == {"products": 1, "copies": 2, "copied_bytes": 4 * 30 + 2 * 4}


def consistent(found, quick):
    """What holds of the quick form and of a result."""
    rounds = found["settings"]["rounds"]
    for case in found["cases"]:
        names = [row["name"] for row in case["rows"]]
        assert names[0] == case["baseline"]
        assert names[-1] == f"{case['baseline']} (again)"
        assert "one product" in names or "positions first, converted" in names
        for row in case["rows"]:
            assert row["error"] <= case["tolerance"]
            assert len(row["seconds_per_round"]) in (rounds, 3 * rounds)
            assert row["operations"]
        assert quick or abs(case["rows"][-1]["ratio"]["median"] - 1) <= 0.1


def test_quick_run(modules, tmp_path, capsys):
    out = tmp_path / "quick.json"
    assert modules["layouts"].main(["--quick", "--rounds", "2", "--out", str(out)]) == 0
    assert "attention decode B=1 T=1 S=32" in capsys.readouterr().out
    found = modules["report"].read_result(out)
    consistent(found, quick=True)
    parts = {case["case"]["part"] for case in found["cases"]}
    assert parts == {"attention", "layer", "projection"}


def test_a_wrong_output_is_refused(modules, monkeypatch):
    layouts, cases = modules["layouts"], modules["layout_cases"]
    right = cases.expected_of
    wrong = lambda *given: [1.01 * x for x in right(*given)]  # noqa: E731
    monkeypatch.setattr(cases, "expected_of", wrong)
    setting = setting_of(modules, "projection", "op by op", 5, 5)
    with pytest.raises(modules["harness"].WrongOutput):
        layouts.measure(setting, {"matmul_flops_per_s": 1.0}, rounds=2)


def test_the_plan_of_a_result(modules):
    plan = modules["layouts"].plan(False)
    labels = [setting.label for setting in plan]
    assert len(set(labels)) == len(labels)
    for label in (
        "attention reference B=16 T=128",
        "attention decode B=1 T=1 S=8192",
        "layer jax_nn B=1 T=2048",
        "projection op by op B=1 T=1",
        "projection compiled, backward B=1 T=128",
    ):
        assert label in labels
    half = modules["layouts"].plan(False, "bfloat16")
    assert {setting.dtype for setting in half} == {"bfloat16"}


@pytest.mark.skipif(not STORED.exists(), reason="nobody has measured it yet")
def test_the_stored_result(modules):
    found = modules["report"].read_result(STORED)
    consistent(found, quick=False)
    assert {case["case"]["dtype"] for case in found["cases"]} == {"float32"}
    assert len(found["cases"]) >= len(modules["layouts"].plan(False))
