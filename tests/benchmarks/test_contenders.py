"""Every contender against float64, without a clock; the work that a benchmark counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
import decode
import gradients
import heads
import layer
import parts
import peers.attention
import peers.layer
from harness import oracle, timing
from harness.comparison import installed
from mha_book.costs import attention_size, forward_matmul_flops

pytestmark = pytest.mark.unoptimized
CUDNN = {"jax.nn cudnn", "jax.nn cudnn, converted"}
# One of each kind: the other rows call the same functions, or compile long.
FEW = ("reference", "attend, fused", "blockwise, TNH", "jax.nn, converted", "flax", "torch")


def passed(contenders, run, error):
    """The names of the contenders that pass; those that refuse, and no others, may be others'."""
    names = set()
    for contender in contenders:
        if not installed(contender.package):
            continue
        try:
            outputs = run(contender)()
        except NotImplementedError:
            assert contender.package in ("jax", "equinox"), contender.name
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
    assert refused <= CUDNN | ({"equinox", "equinox, converted"} if kv_heads else set())


@pytest.mark.parametrize("contenders", of_all(peers.layer.contenders(gpu=True)))
@pytest.mark.parametrize("is_causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_layers(is_causal, contenders):
    """Output, gradient of the input and of all weights."""
    setting = peers.layer.Setting(7, is_causal, True, batch=2, d_model=15, heads=3)
    inputs = layer.inputs_of(setting)
    checked, expected = layer.expected_of(setting, inputs)
    assert checked == "everything"
    assert [piece.output for piece in expected] == list(range(6))
    found = passed(
        contenders,
        lambda one: layer.run_of(one, setting, inputs),
        lambda one, outputs: layer.checked_error(one, outputs, expected, setting),
    )
    assert {one.name for one in contenders if installed(one.package)} - found <= CUDNN


def test_a_wrong_gradient_of_one_weight_is_found():
    setting = peers.layer.Setting(5, True, True, d_model=6, heads=2)
    inputs = layer.inputs_of(setting)
    _, expected = layer.expected_of(setting, inputs)
    contender = peers.layer.contenders(gpu=False)[0]
    output, d_x, d_weights = layer.run_of(contender, setting, inputs)()
    for name in ("w_q", "w_k", "w_v", "w_o"):
        wrong = d_weights._replace(**{name: 1.01 * getattr(d_weights, name)})
        with pytest.raises(oracle.WrongOutput):
            layer.checked_error(contender, (output, d_x, wrong), expected, setting)


def test_float64_gradients_of_the_layer_against_jax():
    setting = peers.layer.Setting(5, True, True, batch=2, d_model=6, heads=2)
    inputs = layer.inputs_of(setting)
    _, expected = layer.expected_of(setting, inputs)

    def by_hand(x, w_q, w_k, w_v, w_o):
        q, k, v = (jnp.reshape(x @ w, (2, 5, 2, 3)) for w in (w_q, w_k, w_v))
        scores = jnp.einsum("binh,bjnh->bnij", q, k) / np.sqrt(3)
        weights = jax.nn.softmax(jnp.where(np.tri(5, dtype=bool), scores, -jnp.inf))
        return jnp.reshape(jnp.einsum("bnij,bjnh->binh", weights, v), (2, 5, 6)) @ w_o

    with jax.enable_x64(True):
        x, bar, *weights = (jnp.asarray(array, "float64") for array in inputs)
        output, pull = jax.jit(lambda *given: jax.vjp(by_hand, *given))(x, *weights)
        for piece, wanted in zip(expected, (output, *jax.jit(pull)(bar)), strict=True):
            np.testing.assert_allclose(piece.values, wanted, rtol=1e-9, atol=1e-12)


def test_one_step_over_a_cache():
    setting = decode.Setting(16, 2, 6, 2, 16)
    inputs = decode.inputs_of(setting)
    expected = decode.expected_of(inputs)
    found = passed(
        decode.CONTENDERS,
        lambda one: one.prepare(inputs),
        lambda one, output: decode._error(one, output, expected, 1e-5),
    )
    every = {one.name for one in decode.CONTENDERS if installed(one.package)}
    assert every - found <= CUDNN
    wrong = np.asarray(expected * 1.001, np.float32)
    with pytest.raises(oracle.WrongOutput):
        decode._error(decode.CONTENDERS[0], wrong, expected, 1e-5)


def test_the_line_through_steps(monkeypatch):
    seconds = {"1": [3.0, 3.0], "2": [5.0, 5.0], "3": [7.0, 7.0]}
    monkeypatch.setattr(decode, "interleave", lambda *_, **__: timing.Times(seconds, {}, {}))
    found = decode.grow(lambda length: None, [1, 2, 3], rounds=2)
    assert found["slope_s_per_token"] == pytest.approx(2)
    assert found["intercept_s"] == pytest.approx(1)
    assert found["largest_residual"] == pytest.approx(0, abs=1e-9)


def test_sharing_is_divided_by_as_many_key_heads_as_query_heads(monkeypatch):
    seconds = {"1": [1.0, 2.0], "2": [3.0, 4.0], "4": [4.0, 4.0]}
    monkeypatch.setattr(decode, "interleave", lambda *_, **__: timing.Times(seconds, {}, {}))
    found = decode.share(lambda one: None, decode.Setting(8, 1, 4, 2, 8), rounds=2)
    assert found["kv_heads"] == [1, 2, 4]
    assert [ratio["median"] for ratio in found["ratio"]] == [0.375, 0.875, 1.0]
    assert found["cache_bytes"] == [512, 1024, 2048]


@pytest.mark.slow
def test_a_stack_of_layers():
    """By hand and automatic, two layers with the gradients of all weights."""
    case = gradients.Stack(5, True, 2, heads=2, head_dim=3)
    inputs = gradients.inputs_of(case)
    expected = gradients.expected_of(case, *inputs)
    arguments = jax.tree.map(jnp.asarray, inputs)
    for name in gradients.NAMES:
        outputs = jax.tree.leaves(gradients.timed_function(name, case)(*arguments))
        assert oracle.largest_error(outputs, expected) < gradients.TOLERANCE


@pytest.mark.parametrize("part", ["attention", "layer"])
def test_numbers_of_heads(part):
    setting = heads.Setting(part, 7, 12)
    inputs = heads.inputs_of(setting)
    for count in (1, 3):
        ours = np.asarray(heads.run_of(setting, inputs, count)())
        expected = heads.expected_of(setting, inputs, count)
        assert ours.shape == expected.shape
        assert oracle.largest_error([ours], [expected]) < setting.tolerance


def test_rows_of_the_numbers_of_heads_are_in_their_order(rates):
    setting = heads.Setting("attention", 4, 128)
    found = heads.measure(setting, [1, 2, 4, 8], rounds=2, quick=True)
    rows = found["rows"]
    assert [row["heads"] for row in rows] == [1, 2, 4, 8, 2]
    assert [row["name"] for row in rows[1:3]] == ["reference", "heads=4"]
    assert rows[-1]["name"] == "reference (again)"
    for row in rows:
        assert row["heads"] * row["head_dim"] == 128
        assert row["score_count"] == row["heads"] * 4**2


def test_the_parts_of_a_layer(rates):
    setting = parts.Setting(7, d_model=12, heads=3, hidden=10)
    found = parts.measure(setting, rounds=2, quick=True)
    rows = {row["name"]: row for row in found["rows"]}
    others = ["feed-forward", "attention", "feed-forward (again)"]
    assert list(rows) == ["projections", *others, "projections (again)"]
    assert {row["status"] for row in rows.values()} == {"measured"}
    flops = {name: row["matmul_flops"] for name, row in rows.items()}
    whole = forward_matmul_flops(attention_size(12, 3), token_count=7, pair_count=49)
    assert flops["projections"] + flops["attention"] == whole
    assert flops["feed-forward"] == 14 * 2 * 12 * 10


def test_work_of_the_layer():
    setting = peers.layer.Setting(7, False, False, batch=2, d_model=12, heads=3)
    whole = forward_matmul_flops(attention_size(12, 3), token_count=14, pair_count=2 * 49)
    assert layer.flops_of(setting) == whole
    assert layer.flops_of(setting._replace(backward=True)) == 3 * whole
