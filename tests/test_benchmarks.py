"""The benchmark harness: its arithmetic on clocks that are made up, its files, one tiny run."""

import doctest
import importlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.benchmark_modules import BENCHMARKS, ROOT, imported

MODULES = (
    "attention",
    "cases",
    "gradients",
    "decode",
    "decode_cases",
    "harness",
    "limits",
    "memory",
    "options",
    "oracle",
    "peers",
    "provenance",
    "report",
    "room",
    "rows",
)


@pytest.fixture(scope="module", autouse=True)
def benchmark_modules():
    """The modules beside the benchmark scripts, as those import them; gone afterwards."""
    with imported(MODULES) as loaded:
        yield loaded


@pytest.fixture
def harness(benchmark_modules):
    return benchmark_modules["harness"]


class FakeClock:
    """A clock that only the functions under test move on."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def function(self, name, seconds):
        """A function that takes `seconds` of this clock (a number, or one for each call)."""
        durations = itertools.repeat(seconds) if np.isscalar(seconds) else iter(seconds)

        def run():
            self.log.append(name)
            self.now += next(durations)
            return name

        return run


def measure(harness, clock, contenders, **options):
    options = {"rounds": 4, "shortest_sample": 0.0, "wait": lambda x: x, "clock": clock, **options}
    return harness.interleave(contenders, **options)


def test_twice_as_slow_is_a_ratio_of_two(harness):
    clock = FakeClock()
    runs = {"a": clock.function("a", 0.25), "b": clock.function("b", 0.5)}
    times = measure(harness, clock, runs)
    ratios = harness.per_round_ratios(times.seconds["b"], times.seconds["a"])
    assert ratios == [2.0] * 4
    assert harness.summarise(ratios) == (2.0,) * 5


@pytest.mark.parametrize(
    "again, rounds",
    [
        ([1.0] * 4, 4),
        ([0.9, 1.2, 1.0, 1.0], 4),
        ([1.2] * 4 + [1.0] * 5 + [1.2] * 3, 12),  # the median of eight is 1.1
        ([1.2] * 12, 12),
    ],
)
def test_rounds_are_added_until_the_baseline_agrees_with_itself(harness, again, rounds):
    clock = FakeClock()
    name = "a" + harness.SELF_PAIR_SUFFIX
    untimed = [1.0, 1.0]
    runs = {"a": clock.function("a", 1.0), name: clock.function(name, untimed + again)}
    times = measure(harness, clock, runs)
    assert times.seconds[name] == pytest.approx(again[:rounds])
    assert len(times.seconds["a"]) == rounds
    assert times.outputs == {"a": "a", name: name}


def test_ratios_pair_the_times_of_one_round(harness):
    """A machine that slows down from round to round leaves every ratio as it is."""
    clock = FakeClock()
    slowing = [1, 1, 1, 2, 4, 8]  # two calls before the first round, then one a round
    runs = {
        "a": clock.function("a", slowing),
        "b": clock.function("b", [3 * s for s in slowing]),
    }
    times = measure(harness, clock, runs)
    assert times.seconds["a"] == [1, 2, 4, 8]
    assert harness.per_round_ratios(times.seconds["b"], times.seconds["a"]) == [3.0] * 4
    assert np.median(times.seconds["b"]) / times.seconds["a"][0] == 9.0  # unpaired: misleading


def test_order_alternates_after_the_warm_up(harness):
    clock = FakeClock()
    runs = {name: clock.function(name, 1.0) for name in "abc"}
    measure(harness, clock, runs)
    assert "".join(clock.log) == "aabbcc" + "abc" + "cba" + "abc" + "cba"


def test_self_pair_stands_at_both_ends_and_is_one(harness):
    clock = FakeClock()
    runs = harness.with_self_pair(
        {"b": clock.function("b", 3.0), "a": clock.function("a", 1.5)}, "a"
    )
    assert list(runs) == ["a", "b", "a (again)"]
    assert runs["a"] is runs["a (again)"]
    times = measure(harness, clock, runs)
    ratios = harness.per_round_ratios(times.seconds["a (again)"], times.seconds["a"])
    assert ratios == [1.0] * 4


def test_steady_drift_cancels_over_two_rounds(harness):
    """Each call takes longer than the one before; the A/A ratios lie on both sides of one."""
    clock = FakeClock()
    drift = itertools.count(100)
    runs = harness.with_self_pair({"a": clock.function("a", drift)}, "a")
    times = measure(harness, clock, runs)
    ratios = harness.per_round_ratios(times.seconds["a (again)"], times.seconds["a"])
    assert [r > 1 for r in ratios] == [True, False, True, False]
    assert abs(np.median(ratios) - 1) < 1e-3


def test_short_calls_are_repeated_within_a_sample(harness):
    clock = FakeClock()
    runs = {"a": clock.function("a", 0.25), "b": clock.function("b", 2.0)}
    times = measure(harness, clock, runs, shortest_sample=1.0, rounds=1)
    assert times.calls == {"a": 4, "b": 1}
    assert times.seconds == {"a": [0.25], "b": [2.0]}  # seconds a call, not a sample


def test_every_timed_call_is_waited_for(harness):
    waited = []
    clock = FakeClock()
    measure(harness, clock, {"a": clock.function("a", 1.0)}, wait=lambda x: waited.append(x) or x)
    assert len(waited) == len(clock.log) == 2 + 4


def test_a_queue_is_waited_for_once_a_sample(harness):
    waited, clock = [], FakeClock()
    options = {"wait": lambda x: waited.append(x) or x, "wait_for_each": False}
    runs = {"a": clock.function("a", 0.25)}
    times = measure(harness, clock, runs, shortest_sample=1.0, rounds=2, **options)
    assert times.calls == {"a": 4}
    assert len(clock.log) == 1 + 1 + 4 + 2 * 4  # a call, twice to find their number, two rounds
    assert len(waited) == 1 + 2 + 2


def test_outputs_are_of_the_last_round_and_progress_is_told(harness):
    seen = []
    clock = FakeClock()
    times = measure(
        harness, clock, {"a": clock.function("a", 1.0)}, progress=lambda *x: seen.append(x)
    )
    assert times.outputs == {"a": "a"}
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_summary_is_order_statistics_only(harness):
    summary = harness.summarise([5.0, 1.0, 2.0, 100.0, 3.0])
    assert summary == (3.0, 2.0, 5.0, 1.0, 100.0)
    assert summary._fields == ("median", "lower_quartile", "upper_quartile", "minimum", "maximum")


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda h: h.summarise([]), "values"),
        (lambda h: h.per_round_ratios([1.0], [1.0, 2.0]), "1 and 2 rounds"),
        (lambda h: h.interleave({}, rounds=0), "rounds"),
        (lambda h: h.with_self_pair({"a": int}, "b"), "baseline"),
    ],
)
def test_bad_input_is_named(harness, call, message):
    with pytest.raises(ValueError, match=message):
        call(harness)


def test_a_wrong_output_is_refused(harness):
    expected = [np.array([1.0, -4.0]), np.array([[2.0]])]
    good = [np.array([1.0, -4.0], np.float32), jnp.array([[2.00001]])]
    assert harness.verify("x", good, expected, 1e-5) == pytest.approx(5e-6, rel=0.1)
    for bad in (
        [good[0], np.array([[2.1]])],
        [good[0], np.array([[np.nan]])],
        [good[0], np.array([2.0])],
        [good[0]],
    ):
        with pytest.raises(harness.WrongOutput, match="x: expected"):
            harness.verify("x", bad, expected, 1e-5)


def test_a_wrong_contender_gets_a_row_without_numbers(benchmark_modules):
    attention = benchmark_modules["attention"]
    peers, cases = benchmark_modules["peers"], benchmark_modules["cases"]
    right = attention.peers.CONTENDERS[0]
    wrong = right._replace(
        name="wrong", call=lambda q, k, v, causal: 1.001 * right.call(q, k, v, causal)
    )
    absent = right._replace(name="absent", package="no_such_package")

    def refuse(*_):
        raise NotImplementedError("not for this shape")

    unable = right._replace(name="unable", call=refuse)
    case = cases.Case(5, True, True, heads=2, head_dim=3)
    found = attention.measure_case(case, [right, wrong, absent, unable], rounds=2, matmul_size=16)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["wrong"]["status"] == "refused"
    assert rows["absent"]["status"] == rows["unable"]["status"] == "not measured"
    assert rows["absent"]["reason"] == "no_such_package is not installed"
    assert rows["unable"]["reason"] == "not for this shape"
    for name in ("wrong", "absent", "unable"):
        assert set(rows[name]) == {"name", "package", "layout", "remark", "status", "reason"}
    for name in (peers.BASELINE, peers.BASELINE + " (again)"):
        assert rows[name]["status"] == "measured"
        assert len(rows[name]["seconds_per_round"]) in (2, 4, 6)
    table = benchmark_modules["report"].table(found["rows"])
    assert "not measured: no_such_package is not installed" in table
    with pytest.raises(benchmark_modules["harness"].WrongOutput):
        attention.measure_case(
            case, [wrong._replace(name=peers.BASELINE)], rounds=1, matmul_size=16
        )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("query_length,key_length", [(7, 7), (1, 1), (5, 11), (11, 5)])
def test_visible_pairs_against_brute_force(benchmark_modules, query_length, key_length, is_causal):
    brute = sum(not is_causal or j <= i for i in range(query_length) for j in range(key_length))
    limits = benchmark_modules["limits"]
    assert limits.visible_pairs(query_length, key_length, is_causal=is_causal) == brute
    assert limits.visible_pairs(13, 13, is_causal=True) == 13 * 14 // 2


def test_flops_against_the_matmuls(benchmark_modules):
    """Forward QKᵀ and PV; backward dV, dP, dQ, dK: 2 FLOPs a pair and unit of width each."""
    count = benchmark_modules["limits"].attention_flops
    pairs, heads, key_width, value_width = 35, 3, 2, 7
    forward = heads * pairs * (2 * key_width + 2 * value_width)
    backward = heads * pairs * (2 * value_width + 2 * value_width + 2 * key_width + 2 * key_width)
    assert count(pairs, heads, key_width, value_width, backward=False) == forward
    assert count(pairs, heads, key_width, value_width, backward=True) == forward + backward


def test_rates_are_positive(benchmark_modules):
    rates = benchmark_modules["limits"].measure_rates(
        "bfloat16", matmul_size=16, copy_mib=1, rounds=2
    )
    assert all(value > 0 for value in rates.values())


@pytest.mark.parametrize("is_causal", [False, True])
def test_oracle_against_a_loop_and_finite_differences(benchmark_modules, is_causal):
    oracle = benchmark_modules["oracle"].attention_float64
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((1, 2, 7, 3)), rng.standard_normal((1, 2, 7, 3))
    value, bar = rng.standard_normal((1, 2, 7, 5)), rng.standard_normal((1, 2, 7, 5))
    found = oracle(query, key, value, is_causal=is_causal, cotangent=bar, block=3)
    loop = np.zeros_like(bar)
    for h, i in itertools.product(range(2), range(7)):
        seen = i + 1 if is_causal else 7
        weights = np.exp([query[0, h, i] @ key[0, h, j] / np.sqrt(3) for j in range(seen)])
        loop[0, h, i] = weights / weights.sum() @ value[0, h, :seen]
    np.testing.assert_allclose(found[0], loop, rtol=1e-12, atol=1e-14)
    operands, step = (query, key, value), 1e-5
    for index, gradient in enumerate(found[1:]):
        direction = rng.standard_normal(operands[index].shape)
        sides = []
        for sign in (1, -1):
            moved = list(operands)
            moved[index] = operands[index] + sign * step * direction
            sides.append((oracle(*moved, is_causal=is_causal)[0] * bar).sum())
        slope = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-8)


def test_provenance_says_where_and_how(benchmark_modules, monkeypatch):
    provenance = benchmark_modules["provenance"]
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    found = json.loads(json.dumps(provenance.record()))
    for field in ("date", "command", "platform", "device", "cpu_model", "python", "system"):
        assert isinstance(found[field], str)
        assert found[field]
    assert found["cores"] == provenance.available_cores() >= 1
    assert set(found["git"]) == {"commit", "dirty"}
    assert found["packages"]["jax"] == jax.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert set(found["packages"]) == set(provenance.PACKAGES)
    assert "XLA_FLAGS" in found["environment"]
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    assert provenance.package_versions() == {"no-such-package": None}


def test_git_state_outside_a_checkout_is_unknown(benchmark_modules, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark_modules["provenance"], "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert benchmark_modules["provenance"].git_state() == {"commit": None, "dirty": None}


def test_a_copy_without_history_is_told_its_commit(benchmark_modules, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark_modules["provenance"], "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for told, dirty in (("ab12", False), ("ab12-dirty", True)):
        monkeypatch.setenv("BENCHMARK_COMMIT", told)
        found = benchmark_modules["provenance"].git_state()
        assert found == {"commit": "ab12", "dirty": dirty}


def test_results_round_trip(benchmark_modules, tmp_path):
    report = benchmark_modules["report"]
    path = tmp_path / "new" / "x.json"
    report.write_result(path, {"name": "x", "cases": [{"seconds": [0.1, 1e-9]}]})
    found = report.read_result(path)
    assert found["cases"] == [{"seconds": [0.1, 1e-9]}]
    assert (found["schema"], found["schema_version"]) == (report.SCHEMA, report.SCHEMA_VERSION)
    path.write_text(json.dumps({**found, "schema_version": 0}))
    with pytest.raises(ValueError, match=r"x\.json: expected schema"):
        report.read_result(path)


@pytest.mark.parametrize("unwritable", [float("nan"), object()])
def test_a_failed_write_leaves_the_old_result(benchmark_modules, tmp_path, unwritable):
    report = benchmark_modules["report"]
    path = tmp_path / "x.json"
    report.write_result(path, {"name": "old"})
    with pytest.raises((TypeError, ValueError)):
        report.write_result(path, {"name": "new", "value": unwritable})
    assert report.read_result(path)["name"] == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_progress_shows_on_a_terminal_only(benchmark_modules, capsys, monkeypatch):
    report = benchmark_modules["report"]
    assert report.progress_line("x") is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    report.progress_line("x")(1, 2)
    assert "x: round 1 of 2" in capsys.readouterr().err


def test_memory_sees_an_allocation(benchmark_modules):
    mib = 200
    found = benchmark_modules["memory"].peak_memory("memory:fill", {"mib": mib})
    assert found["peak_bytes"] >= found["baseline_bytes"]
    assert abs(found["increase_bytes"] / 2**20 - mib) < 0.1 * mib


def test_memory_reports_a_failing_process(benchmark_modules):
    with pytest.raises(RuntimeError, match="no_such_function"):
        benchmark_modules["memory"].peak_memory("memory:no_such_function")


def run_script(*arguments, script="attention.py"):
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=env, timeout=300
    )


def test_quick_run_end_to_end(benchmark_modules, tmp_path):
    out = tmp_path / "quick.json"
    options = ("--quick", "--rounds", "2", "--only", "jax.nn", "--alone", "64", "--out", str(out))
    done = run_script(*options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "reference (again)" in done.stdout
    found = benchmark_modules["report"].read_result(out)
    assert [case["case"]["label"] for case in found["cases"]] == [
        "T=32 full forward N=2 H=16",
        "T=32 full forward+backward N=2 H=16",
        "T=32 causal forward N=2 H=16",
        "T=32 causal forward+backward N=2 H=16",
    ]
    assert "--quick" in found["provenance"]["command"]
    (alone,) = found["alone"]
    assert (alone["name"], alone["case"]["length"]) == ("blockwise", 64)
    assert alone["memory"]["peak_bytes"] >= alone["memory"]["baseline_bytes"] > 2**20
    for case in found["cases"]:
        names = [row["name"] for row in case["rows"]]
        assert names[0] == "reference"
        assert names[-1] == "reference (again)"
        assert names[1:-1] == ["jax.nn", "jax.nn, converted"]
        assert case["checked"] == "everything"
        for row in case["rows"]:
            assert row["status"] == "measured"
            assert row["error"] <= case["tolerance"]
            assert len(row["seconds_per_round"]) in (2, 4, 6)


def test_quick_run_of_gradients(benchmark_modules, tmp_path):
    out = tmp_path / "quick.json"
    options = ("--quick", "--rounds", "2", "--depths", "0", "2", "--out", str(out))
    done = run_script(*options, script="gradients.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = benchmark_modules["report"].read_result(out)
    assert [case["case"]["label"] for case in found["cases"]] == [
        "T=32 full forward+backward N=2 H=16",
        "T=32 full 2 layers",
        "T=32 causal forward+backward N=2 H=16",
        "T=32 causal 2 layers",
    ]
    for case in found["cases"]:
        names = [row["name"] for row in case["rows"]]
        assert names == ["reference", "manual", "recompute", "reference (again)"]
        for row in case["rows"]:
            assert row["status"] == "measured"
            assert row["error"] <= case["tolerance"]


def test_memory_of_a_stack(benchmark_modules):
    case = list(benchmark_modules["gradients"].Stack(32, True, 2, 2, 16))
    target = {"name": "recompute", "case": case}
    found = benchmark_modules["memory"].peak_memory("gradients:prepare_stack", target)
    assert found["increase_bytes"] > 0


def test_decoding_runs_end_to_end(benchmark_modules, tmp_path):
    out = tmp_path / "quick.json"
    done = run_script("--quick", "--rounds", "2", "--out", str(out), script="decode.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = benchmark_modules["report"].read_result(out)
    (case,) = found["cases"]
    names = [row["name"] for row in case["rows"]]
    assert {"cache", "cache, step", "jax.nn", "torch", "read"} < set(names)
    assert names[-1] == "cache (again)"
    for row in case["rows"]:
        if row["status"] == "measured":
            assert row["error"] <= case["tolerance"]
            assert len(row["seconds_per_round"]) in (2, 4, 6)
        else:
            assert row["name"] in ("torch", "jax.nn cudnn")
    line = found["growth"]["attention"]
    assert len(line["lengths"]) == len(line["seconds"]) == 8
    assert line["largest_residual"] >= 0
    for shared in found["sharing"].values():
        assert shared["kv_heads"] == [1, 2, 3, 6]
        assert shared["cache_bytes"][-1] == 6 * shared["cache_bytes"][0]
        assert shared["ratio"][-1]["median"] == 1
        assert all(len(seconds) in (2, 4, 6) for seconds in shared["seconds_per_round"])


def test_the_line_through_steps(benchmark_modules, monkeypatch):
    decode = benchmark_modules["decode"]
    seconds = {"1": [3.0, 3.0], "2": [5.0, 5.0], "3": [7.0, 7.0]}
    times = benchmark_modules["harness"].Times(seconds, {}, {})
    monkeypatch.setattr(decode.harness, "interleave", lambda *_, **__: times)
    found = decode.grow(lambda length: None, [1, 2, 3], rounds=2)
    assert found["slope_s_per_token"] == pytest.approx(2)
    assert found["intercept_s"] == pytest.approx(1)
    assert found["largest_residual"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_peers_that_are_installed_pass_the_check(benchmark_modules, kv_heads):
    """Each contender in both passes against the oracle, without a clock."""
    peers, cases = benchmark_modules["peers"], benchmark_modules["cases"]
    unable = []
    for contender in peers.contenders(gpu=True):
        if importlib.util.find_spec(contender.package) is None:
            continue
        case = cases.Case(7, True, True, batch=2, heads=6, head_dim=5, kv_heads=kv_heads)
        inputs = cases.inputs_of(case)
        if contender.name.startswith(("jax.nn cudnn", "equinox" if kv_heads else "jax.nn cudnn")):
            unable.append(contender.name)
            with pytest.raises(NotImplementedError, match=r"NVIDIA GPU|shares no key/value heads"):
                cases.run_of(contender, case, inputs)()
            continue
        outputs = cases.run_of(contender, case, inputs)()
        assert len(outputs) == 4
        error = cases.checked_error(contender, outputs, cases.expected_of(case), case)
        assert error <= cases.TOLERANCES["float32"]
    assert len(unable) >= 2


@pytest.mark.parametrize("name", MODULES)
def test_examples(benchmark_modules, name):
    result = doctest.testmod(benchmark_modules[name])
    assert result.failed == 0


def test_committed_results_are_readable(benchmark_modules):
    for path in sorted((BENCHMARKS / "results").glob("*.json")):
        found = benchmark_modules["report"].read_result(path)
        assert found["name"] == path.stem
        assert found["settings"]["quick"] is False
        assert found["provenance"]["git"]["commit"]
        assert found["provenance"]["git"]["dirty"] is False
        if not found["settings"].get("timed", True):
            continue
        quiet = benchmark_modules["report"].QUIET
        for case in found["cases"]:
            assert case["rows"][-1]["name"] == f"{case['baseline']} (again)"
            assert abs(case["rows"][-1]["ratio"]["median"] - 1) <= quiet


@pytest.mark.parametrize("median,verdict", [(1.02, "quiet enough"), (0.7, "too noisy")])
def test_a_noisy_run_says_so(benchmark_modules, median, verdict):
    cases = [{"rows": [{"ratio": {"median": value}}]} for value in (1.0, median)]
    assert verdict in benchmark_modules["report"].self_pairs(cases)
