"""Provenance, files, tables, the progress line, the command line, pictures; stored results."""

import doctest
import importlib
import json
import os
import sys

import jax
import numpy as np
import pytest

import plot
from harness import options, provenance, report
from tests.benchmarks.paths import BENCHMARKS

FILES = sorted((BENCHMARKS / "results").glob("*.json"))
RESULTS = [path for path in FILES if not path.stem.startswith("compiled-")]  # those were not run
MODULES = (
    *(f"harness.{path.stem}" for path in (BENCHMARKS / "harness").glob("[a-z]*.py")),
    "layer",
    "plot",
    "precision",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_provenance_says_where_and_how(monkeypatch):
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


def test_git_state_outside_a_checkout_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.git_state() == {"commit": None, "dirty": None}


def test_a_copy_without_history_is_told_its_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for told, dirty in (("ab12", False), ("ab12-dirty", True)):
        monkeypatch.setenv("BENCHMARK_COMMIT", told)
        found = provenance.git_state()
        assert found == {"commit": "ab12", "dirty": dirty}


def test_results_round_trip(tmp_path):
    path = tmp_path / "new" / "x.json"
    report.write_result(path, {"name": "x", "cases": [{"seconds": [0.1, 1e-9]}]})
    found = report.read_result(path)
    assert found["cases"] == [{"seconds": [0.1, 1e-9]}]
    assert (found["schema"], found["schema_version"]) == (report.SCHEMA, report.SCHEMA_VERSION)
    path.write_text(json.dumps({**found, "schema_version": 0}))
    with pytest.raises(ValueError, match=r"x\.json: expected schema"):
        report.read_result(path)


@pytest.mark.parametrize("unwritable", [float("nan"), object()])
def test_a_failed_write_leaves_the_old_result(tmp_path, unwritable):
    path = tmp_path / "x.json"
    report.write_result(path, {"name": "old"})
    with pytest.raises((TypeError, ValueError)):
        report.write_result(path, {"name": "new", "value": unwritable})
    assert report.read_result(path)["name"] == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_process_that_is_stopped_while_it_writes_leaves_the_old_result(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    report.write_result(path, {"name": "old"})

    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        report.write_result(path, {"name": "new"})
    assert report.read_result(path)["name"] == "old"


def test_progress_shows_on_a_terminal_only(capsys, monkeypatch):
    assert report.progress_line("x") is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    report.progress_line("x")(1, 2)
    assert "x: round 1 of 2" in capsys.readouterr().err


def a_row(name, seconds, **more):
    times = {"median": seconds, "lower_quartile": seconds, "upper_quartile": seconds}
    times |= {"minimum": seconds, "maximum": 2 * seconds}
    row = {"name": name, "layout": "NTH", "status": "measured", "fraction_of_matmul_rate": 0.5}
    return {**row, "seconds": times, "ratio": times, **more}


def a_case(length=8, **more):
    """A case of a result as `compare` makes it."""
    absent = {"name": "c", "layout": "TNH", "status": "not measured", "reason": "too large"}
    rows = [a_row("a", 1.0, memory={"increase_bytes": 3 * 2**20}), absent, a_row("b", 2.0)]
    case = {"length": length, "label": f"T={length} full"}
    again = {"rows": [*rows, a_row("a (again)", 1.0)], "baseline": "a"}
    return {"case": case, "rates": {"matmul_flops_per_s": 3e9}, **again, **more}


def test_the_table_of_a_case():
    head, a, c, b, _ = report.table(a_case()["rows"]).splitlines()
    assert head.split() == ["layout", "ms", "ratio", "quartiles", "range", "of", "P", "MiB"]
    assert a.split()[:6] == ["a", "NTH", "1000.000", "1.000", "1.000", "to"]
    assert a.endswith("  3")
    assert c == "c          TNH     not measured: too large"
    assert b.split()[2:4] == ["2000.000", "2.000"]
    assert len(a) == len(head)
    (_, a, *_) = report.table(a_case()["rows"], {"twice": lambda row: "x" * 2}).splitlines()
    assert a.split() == ["a", "NTH", "xx"]


def test_a_result_is_recorded(tmp_path, capsys):
    parser = options.Parser("made-up", "", ratios_to="a's")
    parser.sized("--lengths", (512,), (8, 16), help="lengths")
    parser.memory()
    parser.dtype()
    out = tmp_path / "x.json"
    given = parser.parse(["--quick", "--out", str(out)])
    assert (given.lengths, given.rounds, given.memory) == ((8, 16), 4, False)
    assert parser.parse(["--rounds", "6"]).rounds == 6
    assert (parser.parse([]).lengths, parser.parse([]).memory) == ((512,), True)
    recorder = report.Recorder("made-up", given, more=1)
    for length in given.lengths:
        recorder.add(a_case(length), note=", noted")
    assert recorder.finish(growth=[1]) == 0
    found = report.read_result(out)
    assert found["settings"] == {"rounds": 4, "quick": True, "dtype": "float32", "more": 1}
    assert found["growth"] == [1]
    assert [case["case"]["length"] for case in found["cases"]] == [8, 16]
    assert {"load_average", "load_average_after"} < set(found["provenance"])
    printed = capsys.readouterr().out
    assert "T=8 full, noted, 3 GFLOP/s matmul\n" in printed
    assert "self-pair medians: 1.000 to 1.000, quiet enough" in printed
    refused = a_case()
    refused["rows"][1]["status"] = "refused"
    recorder.add(refused)
    assert recorder.finish() == 1


@pytest.mark.parametrize("platform, kept", [("cpu", False), ("gpu", True)])
def test_cases_are_kept_as_they_come_on_an_accelerator(tmp_path, monkeypatch, platform, kept):
    origin = {**provenance.record(), "platform": platform}
    monkeypatch.setattr(provenance, "record", lambda **given: origin)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    recorder = report.Recorder("made-up", options.Parser("made-up", "").parse([]))
    recorder.add(a_case())
    out = tmp_path / f"made-up-{platform}.json"
    assert out.exists() == kept
    recorder.finish()
    assert report.read_result(out)["name"] == f"made-up-{platform}"


def test_a_quick_run_is_no_result(capsys):
    recorder = report.Recorder("made-up", options.Parser("made-up", "").parse(["--quick"]))
    recorder.add(a_case())
    recorder.finish()
    assert "wrote" not in capsys.readouterr().out
    assert not (BENCHMARKS / "results" / "made-up-cpu.json").exists()


@pytest.mark.parametrize("median,verdict", [(1.02, "quiet enough"), (0.7, "too noisy")])
def test_a_noisy_run_says_so(median, verdict):
    cases = [{"rows": [{"ratio": {"median": value}}]} for value in (1.0, median)]
    assert verdict in report.self_pairs(cases)


def test_pictures(tmp_path):
    """Over several lengths, and of one; what was not measured is named with its reason."""
    recorder = report.Recorder(
        "x", options.Parser("x", "").parse(["--quick", "--out", str(tmp_path / "x.json")])
    )
    for length in (8, 16):
        recorder.add(a_case(length))
    alone = a_case(8)
    alone["case"] = {"length": 8, "label": "T=8 causal"}
    recorder.add(alone)
    recorder.finish()
    figure = plot.draw(report.read_result(tmp_path / "x.json"))
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert [ax.get_title() for ax in shown if ax.get_title()] == ["full", "causal"]
    assert len(shown) == 2 * 2  # ratio and fraction of P
    line = next(line for line in shown[0].get_lines() if line.get_label() == "b")
    assert line.get_xydata().tolist() == [[8, 2], [16, 2]]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["a", "b", "a (again)"]
    assert "c not measured: too large" in figure.get_supxlabel()
    assert plot.main([str(tmp_path / "x.json"), "--to", str(tmp_path), "--format", "svg"]) == 0
    assert (tmp_path / "x.svg").stat().st_size > 10_000


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_stored_results_are_readable_and_quiet(path):
    found = report.read_result(path)
    assert found["name"] == path.stem
    assert found["settings"]["quick"] is False
    assert found["provenance"]["git"]["commit"]
    assert found["provenance"]["git"]["dirty"] is False
    if not found["settings"].get("timed", True):
        return
    for case in found["cases"]:
        assert case["rows"][-1]["name"] == f"{case['baseline']} (again)"
        assert abs(case["rows"][-1]["ratio"]["median"] - 1) <= report.QUIET
