"""Every contender against float64, without a clock; the work that a benchmark counts."""

import pytest

import attention
import decode
import heads
import layouts
import peers.attention
from harness import oracle
from harness.comparison import installed

CUDNN = {"jax.nn cudnn", "jax.nn cudnn, converted"}
# One of each kind: the other rows call the same functions, or compile long.
FEW = ("reference", "attend", "blockwise, TNH", "jax.nn, converted", "torch")
SETTINGS = [
    ("attention", "reference", 5, 7),
    ("attention", "decode", 1, 7),
    ("layer", "jax_nn", 5, 5),
    ("projection", "op by op", 5, 5),
    ("projection", "compiled, backward", 5, 5),
]


def passed(contenders, run, error):
    """The names of the contenders that pass; those that refuse, and no others, may be others'."""
    names = set()
    for contender in contenders:
        if not installed(contender.package):
            continue
        try:
            outputs = run(contender)()
        except NotImplementedError:
            assert contender.package == "jax", contender.name
        else:
            error(contender, outputs)
            names.add(contender.name)
    return names


def of_all(every):
    """A few of the contenders, and in a slow test all."""
    few = [one for one in every if one.name in FEW]
    return [pytest.param(few, id="few"), pytest.param(every, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("contenders", of_all(peers.attention.contenders(gpu=True)))
@pytest.mark.parametrize("kv_heads", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_attention(kv_heads, contenders):
    case = attention.Case(7, True, True, batch=2, heads=6, head_dim=5, kv_heads=kv_heads)
    inputs, expected = attention.inputs_of(case), attention.expected_of(case)

    def error(contender, outputs):
        assert len(outputs) == 4
        attention.checked_error(contender, outputs, expected, case)

    found = passed(contenders, lambda one: attention.run_of(one, case, inputs), error)
    refused = {one.name for one in contenders if installed(one.package)} - found
    assert refused <= CUDNN


@pytest.mark.parametrize("implementation", ["reference", heads.CHOICE])
def test_the_layer_of_any_number_of_heads(implementation):
    setting = heads.Setting("layer", 7, 12, implementation)
    for count in (1, 3):
        contender, expected = heads.prepared(setting, "layer", count)
        oracle.verify_pieces("layer", contender.run(), expected, setting.tolerance)


def test_one_step_over_a_cache():
    setting = decode.Setting(16, 2, 6, 2, 16)
    inputs = decode.inputs_of(setting)
    expected = decode.expected_of(inputs)
    found = passed(
        decode.CONTENDERS,
        lambda one: one.run(inputs),
        lambda one, output: decode._error(one, output, expected, 1e-5),
    )
    every = {one.name for one in decode.CONTENDERS if installed(one.package)}
    assert every - found <= CUDNN


# Layouts.


@pytest.mark.parametrize("given", SETTINGS, ids=lambda given: f"{given[0]}, {given[1]}")
def test_every_form_against_float64(given):
    setting = layouts.Setting(*given, batch=2, d_model=12, heads=3)
    inputs = layouts.inputs_of(setting)
    expected = layouts.expected_of(setting, inputs)
    runs = layouts.contenders_of(setting, inputs)
    assert len(runs) >= 3
    for name, run in runs.items():
        outputs = layouts.outputs_of(setting, name, run())
        assert oracle.largest_error(outputs, expected) < 2e-5, name
