"""The whole layer against its peers, rows without a number, the sampled check, pictures, gpu.sh."""

import doctest
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.benchmark_modules import BENCHMARKS, ROOT, imported

MODULES = (
    "cases",
    "harness",
    "layer",
    "layer_cases",
    "layer_peers",
    "limits",
    "memory",
    "options",
    "oracle",
    "peers",
    "plot",
    "precision",
    "provenance",
    "report",
    "room",
    "rows",
)


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The modules as the scripts import them; gone afterwards."""
    with imported(MODULES) as loaded:
        yield loaded


@pytest.mark.parametrize("name", ["layer", "plot", "precision"])
def test_examples(modules, name):
    assert doctest.testmod(modules[name]).failed == 0


# --- the layer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
def test_layers_that_are_installed_pass_the_check(modules, is_causal):
    """Output, gradient of the input and of all weights, against float64, without a clock."""
    cases, contenders = modules["layer_cases"], modules["layer_peers"].contenders(gpu=True)
    setting = cases.Setting(7, is_causal, True, batch=2, d_model=15, heads=3)
    inputs = cases.inputs_of(setting)
    checked, expected = cases.expected_of(setting, inputs)
    assert checked == "everything"
    assert [piece.output for piece in expected] == list(range(6))
    passed = []
    for contender in contenders:
        if importlib.util.find_spec(contender.package) is None:
            continue
        if contender.name == "jax.nn cudnn":
            with pytest.raises(NotImplementedError, match="NVIDIA GPU"):
                cases.run_of(contender, setting, inputs)()
            continue
        outputs = cases.run_of(contender, setting, inputs)()
        assert cases.checked_error(contender, outputs, expected, setting) < 2e-5
        passed.append(contender.name)
    assert {"reference", "attend", "attend, fused", "jax.nn", "flax", "equinox"} <= set(passed)


def test_a_wrong_gradient_of_one_weight_is_found(modules):
    cases = modules["layer_cases"]
    setting = cases.Setting(5, True, True, d_model=6, heads=2)
    inputs = cases.inputs_of(setting)
    _, expected = cases.expected_of(setting, inputs)
    contender = modules["layer_peers"].contenders(gpu=False)[0]
    output, d_x, d_weights = cases.run_of(contender, setting, inputs)()
    for name in ("w_q", "w_k", "w_v", "w_o"):
        wrong = d_weights._replace(**{name: 1.01 * getattr(d_weights, name)})
        with pytest.raises(modules["harness"].WrongOutput):
            cases.checked_error(contender, (output, d_x, wrong), expected, setting)


def test_float64_gradients_of_the_layer_against_jax(modules):
    cases = modules["layer_cases"]
    setting = cases.Setting(5, True, True, batch=2, d_model=6, heads=2)
    inputs = cases.inputs_of(setting)
    _, expected = cases.expected_of(setting, inputs)

    def layer(x, w_q, w_k, w_v, w_o):
        q, k, v = (jnp.reshape(x @ w, (2, 5, 2, 3)) for w in (w_q, w_k, w_v))
        scores = jnp.einsum("binh,bjnh->bnij", q, k) / np.sqrt(3)
        weights = jax.nn.softmax(jnp.where(np.tri(5, dtype=bool), scores, -jnp.inf))
        return jnp.reshape(jnp.einsum("bnij,bjnh->binh", weights, v), (2, 5, 6)) @ w_o

    with jax.enable_x64(True):
        x, bar, *weights = (jnp.asarray(array, "float64") for array in inputs)
        output, pull = jax.vjp(layer, x, *weights)
        for piece, wanted in zip(expected, (output, *pull(bar)), strict=True):
            np.testing.assert_allclose(piece.values, wanted, rtol=1e-9, atol=1e-12)


def run_script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_quick_run_and_its_picture(modules, tmp_path):
    out = tmp_path / "quick.json"
    only = ("--only", "attend", "flax", "tokamax")
    done = run_script("layer.py", "--quick", "--rounds", "2", *only, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = modules["report"].read_result(out)
    assert [case["case"]["is_causal"] for case in found["cases"]] == [False, False, True, True]
    for case in found["cases"]:
        names = [row["name"] for row in case["rows"]]
        wanted = ["reference", "attend", "attend, fused", "tokamax", "flax", "reference (again)"]
        assert names == wanted
        for row in case["rows"]:
            assert row["status"] == "measured" or row["name"] == "tokamax"
    setting = modules["layer_cases"].Setting(*list(found["cases"][1]["case"].values())[:-1])
    assert found["cases"][1]["matmul_flops"] == modules["layer"].flops_of(setting)
    figure = modules["plot"].draw(found)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == 2 * 4  # ratio and fraction of P
    assert "reference (again)" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert modules["plot"].main([str(out), "--to", str(tmp_path), "--format", "svg"]) == 0
    assert (tmp_path / "quick.svg").stat().st_size > 10_000


def test_quick_run_of_precision(modules, tmp_path):
    out = tmp_path / "quick.json"
    done = run_script("precision.py", "--quick", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = modules["report"].read_result(out)
    assert [case["case"]["dtype"] for case in found["cases"]] == ["bfloat16", "float16", "float32"]
    for case in found["cases"]:
        rows = {row["name"]: row for row in case["rows"]}
        for name in ("reference", "blockwise"):
            assert set(rows[name]["errors"]) == {"output", "query", "key", "value"}
            for error in rows[name]["errors"].values():
                assert 0 < error["largest"] < modules["cases"].TOLERANCES[case["case"]["dtype"]]
    assert modules["plot"].main([str(out), "--to", str(tmp_path)]) == 0
    assert not (tmp_path / "quick.png").exists()  # there are no times to draw


# --- rows without a number ----------------------------------------------------------------------


class Fake(NamedTuple):
    name: str
    run: Any
    package: str = "mha_book"
    layout: str = "NTH"
    remark: str = ""


def compared(modules, *contenders: Fake) -> tuple[str, dict[str, dict[str, Any]]]:
    """What `compare` makes of contenders that return a number or raise."""

    def prepare(one: Fake) -> Any:
        if isinstance(one.run, Exception):
            raise one.run
        return lambda: np.float64(one.run)

    def error(one: Fake, output: Any) -> float:
        return modules["harness"].verify(one.name, [output], [np.float64(1.0)], 1e-3)

    baseline, rows, _ = modules["rows"].compare(
        contenders,
        prepare=prepare,
        error=error,
        numbers=lambda one, measured: {"more": one.name},
        baseline="first",
        rounds=2,
        label="",
    )
    return baseline, {row["name"]: row for row in rows}


def test_why_a_row_holds_no_number(modules):
    out_of_memory = type("OutOfMemoryError", (RuntimeError,), {})("CUDA\nmore")
    _, rows = compared(
        modules,
        Fake("first", 1.0),
        Fake("absent", 1.0, package="no_such_package"),
        Fake("not served", NotImplementedError("half precision only")),
        Fake("large", out_of_memory),
        Fake("larger", RuntimeError("RESOURCE_EXHAUSTED: 5 GiB")),
        Fake("peer", ValueError("its defect"), package="numpy"),
        Fake("defect", ValueError("our defect")),
        Fake("wrong", 1.1),
        Fake("right", 1.0),
    )
    status = {name: (row["status"], row.get("reason")) for name, row in rows.items()}
    assert status["absent"] == ("not measured", "no_such_package is not installed")
    assert status["not served"] == ("not measured", "half precision only")
    assert status["large"] == ("not measured", "out of memory: CUDA")
    assert status["larger"] == ("not measured", "out of memory: RESOURCE_EXHAUSTED: 5 GiB")
    assert status["peer"] == ("not measured", "ValueError: its defect")
    assert status["defect"] == ("refused", "ValueError('our defect')")
    assert status["wrong"][0] == "refused"
    for name in ("first", "right", "first (again)"):
        assert status[name] == ("measured", None)
        assert rows[name]["more"] == name.removesuffix(" (again)")
    assert all("seconds" not in row for row in rows.values() if row["status"] != "measured")
    assert list(rows)[-1] == "first (again)"


def test_the_baseline_is_the_first_that_fits(modules):
    large = NotImplementedError("needs 5 GiB")
    baseline, rows = compared(modules, Fake("first", large), Fake("b", 1.0), Fake("c", 1.0))
    assert baseline == "b"
    assert rows["b (again)"]["status"] == "measured"
    assert rows["c"]["ratio"]["median"] > 0


@pytest.mark.parametrize("run", [1.1, ValueError("a defect")])
def test_a_wrong_baseline_ends_the_run(modules, run):
    with pytest.raises(ValueError, match=r"error of|a defect"):
        compared(modules, Fake("first", run), Fake("b", 1.0))


def test_what_does_not_fit_is_not_run(modules, monkeypatch):
    room = modules["room"]
    double, x = jax.jit(lambda x: x + x), jnp.ones((256, 1024), "float32")
    assert room.free_bytes() is None or room.free_bytes() > 2**20
    room.check_room(double, [x])
    monkeypatch.setattr(room, "free_bytes", lambda: 2**20)
    with pytest.raises(NotImplementedError, match=r"needs 0\.0 GiB beside its inputs"):
        room.check_room(double, [x])
    monkeypatch.setattr(room, "free_bytes", lambda: None)
    room.check_room(double, [x])


def test_the_plan_is_asked_for_large_cases_alone(modules, monkeypatch):
    cases, asked = modules["cases"], []
    monkeypatch.setattr(cases.room, "check_room", lambda *_: asked.append(True))
    contender = modules["peers"].CONTENDERS[0]
    case = cases.Case(8, False, False, heads=1, head_dim=4)
    cases.run_of(contender, case, cases.inputs_of(case))
    assert asked == []
    monkeypatch.setattr(cases, "LARGE", 4 * 8 * 8)
    cases.run_of(contender, case, cases.inputs_of(case))
    assert asked == [True]


# --- the sampled check --------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kv_heads", [6, 2])
def test_a_sample_agrees_with_everything(modules, is_causal, kv_heads):
    oracle = modules["oracle"]
    rng = np.random.default_rng(0)
    query, bar = (rng.standard_normal((2, 6, 11, 5)) for _ in range(2))
    key, value = (rng.standard_normal((2, kv_heads, 11, 5)) for _ in range(2))
    given = {"is_causal": is_causal, "cotangent": bar}
    whole = oracle.attention_float64(query, key, value, **given, block=4)
    words, pieces = oracle.attention_pieces(
        query, key, value, **given, most_pairs=6 // kv_heads * 11**2, sampled_rows=4
    )
    assert words == "4 query rows of every head, all of one key/value head"
    assert [piece.output for piece in pieces] == [0, 1, 0, 1, 2, 3]
    assert {0, 10} <= set(pieces[0].where[2])
    for piece in pieces:
        found = whole[piece.output][piece.where]
        assert found.shape == piece.values.shape
        np.testing.assert_allclose(found, piece.values, rtol=1e-12, atol=1e-14)
    words, pieces = oracle.attention_pieces(
        query, key, value, **given, most_pairs=120, sampled_rows=4
    )
    assert words == "4 query rows of every head"
    assert [piece.output for piece in pieces] == [0, 1]


def test_shared_heads_are_repeated_heads(modules):
    """The gradient of a shared head is the sum over the query heads that read it."""
    oracle = modules["oracle"].attention_float64
    rng = np.random.default_rng(0)
    query, bar = (rng.standard_normal((1, 6, 7, 5)) for _ in range(2))
    key, value = (rng.standard_normal((1, 2, 7, 5)) for _ in range(2))
    shared = oracle(query, key, value, is_causal=True, cotangent=bar)
    repeated = (np.repeat(x, 3, axis=1) for x in (key, value))
    found = oracle(query, *repeated, is_causal=True, cotangent=bar)
    sums = [x.reshape(1, 2, 3, 7, 5).sum(2) for x in found[2:]]
    for ours, theirs in zip(shared, (*found[:2], *sums), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


# --- the command for a GPU ----------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
def test_gpu_command_in_its_quick_form(modules, tmp_path):
    env = {**os.environ, "PYTHON": sys.executable, "CACHE": str(tmp_path / "compiled")}
    command = [
        "sh",
        str(BENCHMARKS / "gpu.sh"),
        "--quick",
        "--to",
        str(tmp_path),
        "heads",
        "nothing",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 2
    assert "heads: done" in done.stdout, (tmp_path / "heads.log").read_text()
    assert "no step is called nothing" in done.stderr
    found = modules["report"].read_result(tmp_path / "heads-gpu.json")
    assert found["settings"]["dtype"] == "bfloat16"
    assert found["provenance"]["environment"]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.8"


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
def test_gpu_command_wants_a_gpu(tmp_path):
    env = {**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    command = ["sh", str(BENCHMARKS / "gpu.sh"), "--to", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 2
    assert "JAX finds no GPU here" in done.stderr
