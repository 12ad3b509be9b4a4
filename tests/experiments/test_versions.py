"""On which versions the tests were run: what is stored is whole, and what a report says is read."""

import re
import sys
import tomllib
from pathlib import Path

import jax

from experiments import versions
from mha_book.storage import read_result

ROOT = Path(__file__).parents[2]
REPORT = """<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="1" failures="1"
skipped="2" tests="9" time="61.7" timestamp="2026-11-23T01:38:39+00:00">
<testcase classname="tests.a" name="works"/>
<testcase classname="tests.a" name="fails"><failure message="no"/></testcase>
<testcase classname="tests.b" name="breaks"><error message="no"/></testcase>
</testsuite></testsuites>"""


def test_what_was_run_passed_and_what_was_not_is_named() -> None:
    stored = read_result(versions.RESULT)
    cells = stored["cells"]
    assert sorted([*cells, *stored["not run"]]) == sorted(versions.CELLS)
    assert {f"{python} newest" for python in ("3.11", "3.12", "3.13")} <= set(cells)
    for name, cell in cells.items():
        assert cell["not passed"] == [], name
        assert cell["skipped"] == 0
        assert cell["passed"] >= 6500
        assert cell["python"].startswith(versions.CELLS[name].python)
        assert len(cell["commit"]) == 40


def test_the_oldest_and_the_newest_are_those_that_are_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    pythons = [c.rpartition(" :: ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert {cell.python for cell in versions.CELLS.values()} == set(pythons)
    assert f"jax>={versions.OLDEST.removesuffix('.0')}" in project["dependencies"]
    locked = re.findall(r"^jax==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.M)
    cells = read_result(versions.RESULT)["cells"]
    for name, found in cells.items():
        wanted, ran = versions.CELLS[name].jax, found["jax"]
        assert ran == wanted if wanted else ran in locked, name


def test_a_report_is_read_and_stands_beside_the_others(tmp_path: Path) -> None:
    report, output = tmp_path / "report.xml", tmp_path / "versions.json"
    report.write_text(REPORT)
    again = tmp_path / "again.xml"
    again.write_text(REPORT.replace('<error message="no"/>', ""))
    found = versions.row("AVX2", report, Path(sys.executable), ROOT, again)
    assert {key: found[key] for key in ("passed", "skipped", "seconds", "date")} == {
        "passed": 5, "skipped": 2, "seconds": 62, "date": "2026-11-23",
    }  # fmt: skip
    assert (found["not passed"], found["mended"]) == (["tests.a::fails"], ["tests.b::breaks"])
    assert (found["jax"], found["machine"]) == (jax.__version__, "one core, without AVX-512")
    versions.store({"AVX2": found}, output)
    versions.store({"3.11 oldest": found}, output)
    versions.store({"AVX2": {**found, "passed": 6}}, output)
    cells, missing = (read_result(output)[key] for key in ("cells", "not run"))
    assert list(cells) == ["3.11 oldest", "AVX2"]
    assert "one core" in missing
    assert "AVX2" not in missing
    assert (cells["3.11 oldest"]["passed"], cells["AVX2"]["passed"]) == (5, 6)
