"""The benchmark of layouts and projections: outputs, work, counted operations, a quick run."""

import functools

import jax
import jax.numpy as jnp
import pytest

import layouts
from harness import oracle
from mha_book.costs import attention_size, forward_matmul_flops

pytestmark = pytest.mark.unoptimized
SETTINGS = [
    ("attention", "reference", 5, 7),
    ("attention", "jax_nn", 5, 5),
    pytest.param(("attention", "blockwise", 5, 7), marks=pytest.mark.slow),
    ("attention", "decode", 1, 7),
    ("layer", "reference", 5, 5),
    ("layer", "jax_nn", 5, 5),
    ("projection", "compiled", 5, 5),
    ("projection", "op by op", 5, 5),
    ("projection", "compiled, backward", 5, 5),
]


def setting_of(*given, batch=2, d_model=12, heads=3):
    return layouts.Setting(*given, batch=batch, d_model=d_model, heads=heads)


@pytest.mark.parametrize("given", SETTINGS, ids=lambda given: f"{given[0]}, {given[1]}")
def test_every_form_against_float64(given):
    setting = setting_of(*given)
    inputs = layouts.inputs_of(setting)
    expected = layouts.expected_of(setting, inputs)
    runs = layouts.contenders_of(setting, inputs)
    assert len(runs) >= 3
    for name, run in runs.items():
        outputs = layouts.outputs_of(setting, name, run())
        assert oracle.largest_error(outputs, expected) < 2e-5, name


def test_the_gradients_of_a_projection():
    """The float64 gradients, against automatic differentiation of one einsum."""
    inputs = layouts.inputs_of(setting_of("projection", "compiled, backward", 5, 5))
    expected = layouts.expected_of(setting_of("projection", "compiled, backward", 5, 5), inputs)

    def projected(x, *weights):
        return tuple(jnp.einsum("btd,dnh->bnth", x, w) for w in weights)

    x, *arrays = map(jnp.asarray, inputs)
    gradients = jax.jit(lambda: jax.vjp(projected, x, *arrays[:3])[1](tuple(arrays[3:])))()
    assert oracle.largest_error(gradients, expected[3:]) < 2e-5


def test_work_is_that_of_the_formulas():
    flops_of, size = layouts.flops_of, attention_size(12, 3)
    whole = forward_matmul_flops(size, token_count=14, pair_count=2 * 49)
    projections = forward_matmul_flops(size, token_count=14)
    assert flops_of(setting_of("layer", "reference", 7, 7)) == whole
    assert flops_of(setting_of("attention", "reference", 7, 7)) == whole - projections
    one = flops_of(setting_of("projection", "compiled", 7, 7))
    assert 4 * one == 3 * projections
    assert flops_of(setting_of("projection", "compiled, backward", 7, 7)) == 3 * one


def test_a_copy_is_counted_with_its_bytes():
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

    counts = layouts.count_operations(Run())
    assert counts == {"products": 1, "copies": 2, "copied_bytes": 4 * 30 + 2 * 4}


def test_calls_are_counted_where_nothing_is_compiled():
    run = functools.partial(lambda x, w: (x @ w) @ w, jnp.ones((2, 2)), jnp.ones((2, 2)))
    assert layouts.count_operations(run) == {"calls": 2}


def test_a_case_of_a_result():
    setting = setting_of("projection", "compiled", 5, 5)
    found = layouts.measure(setting, {"matmul_flops_per_s": 1.0}, rounds=2)
    names = [row["name"] for row in found["rows"]]
    assert names[0] == found["baseline"] == "one product"
    assert names[-1] == "one product (again)"
    for row in found["rows"]:
        assert row["status"] == "measured"
        assert row["operations"]["products"] >= 1


def test_a_wrong_output_is_refused(monkeypatch):
    right = layouts.expected_of
    wrong = lambda *given: [1.01 * x for x in right(*given)]  # noqa: E731
    monkeypatch.setattr(layouts, "expected_of", wrong)
    setting = setting_of("projection", "op by op", 5, 5)
    with pytest.raises(oracle.WrongOutput):
        layouts.measure(setting, {"matmul_flops_per_s": 1.0}, rounds=2)


def test_the_plan_of_a_result():
    plan = layouts.plan(False)
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
    half = layouts.plan(False, "bfloat16")
    assert {setting.dtype for setting in half} == {"bfloat16"}
