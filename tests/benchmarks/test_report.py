"""Results on disk: where they come from, written whole, kept case by case."""

import pytest

from harness import memory, options, provenance, report


def a_case(status="measured"):
    """A case of a result as `compare` makes it."""
    times = dict.fromkeys(("median", "lower_quartile", "upper_quartile", "minimum", "maximum"), 1.0)
    row = {"name": "a", "layout": "NTH", "remark": "", "seconds": times, "ratio": times}
    row |= {"status": "measured", "fraction_of_matmul_rate": 0.5}
    other = {"name": "b", "layout": "TNH", "status": status, "reason": "too large"}
    rows = [row, row | other, row | {"name": "a (again)"}]
    return {"case": {"length": 8, "label": "T=8"}, "rows": rows, "baseline": "a"}


def test_a_result_is_recorded_and_a_refused_row_is_an_error(tmp_path):
    parser = options.Parser("made-up", "", ratios_to="a's")
    parser.sized("--lengths", (512,), (8, 16), help="lengths")
    parser.dtype()
    given = parser.parse(["--quick", "--out", str(tmp_path / "x.json")])
    assert (given.lengths, given.rounds, parser.parse([]).lengths) == ((8, 16), 4, (512,))
    recorder = report.Recorder("made-up", given, more=1)
    recorder.add(a_case())
    assert recorder.finish(growth=[1]) == 0
    found = report.read_result(tmp_path / "x.json")
    assert found["settings"] == {"rounds": 4, "quick": True, "dtype": "float32", "more": 1}
    assert (found["growth"], len(found["cases"])) == ([1], 1)
    recorder.add(a_case("refused"))
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


def test_memory_sees_an_allocation():
    mib = 200
    found = memory.peak_memory("harness.memory:fill", {"mib": mib})
    assert found["peak_bytes"] >= found["baseline_bytes"]
    assert abs(found["increase_bytes"] / 2**20 - mib) < 0.1 * mib
