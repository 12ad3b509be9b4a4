"""Stored programs that were compiled and not run: what follows from them, a slice, forgeries."""

import importlib.metadata
import re

import pytest

from accelerators import NOTICE, Program, _spec, plan
from harness import compiled
from mha_book.attention.dispatch import select
from tests.stored.compiled import AGAIN, check_again, check_scores, check_shapes
from tests.stored.files import TIMES, forged, result

NAMES = sorted(path.name for path in TIMES.glob("compiled-*.json"))
STATUSES = {"compiled", "failed", "refused", "given up"}
OF_TPU = "compiled-v6e.json"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_it_is_and_what_is_left(name):
    document = result(name)
    settings, target = document["settings"], document["settings"]["target"]
    assert name == f"compiled-{target}.json"
    assert settings["notice"] == NOTICE
    assert NOTICE.startswith("compiled, not run")
    assert settings["timed"] is False
    assert settings["description"] == compiled.description(target)
    assert all(re.fullmatch(r"[\d.]+", version) for version in settings["compilers"].values())
    programs = [Program(**row["program"]) for row in document["programs"]]
    assert len(set(programs)) == len(programs)
    reached = {program.label for program in programs}
    assert {p.label for p in plan(target)} == reached | set(document["left"])
    assert not reached & set(document["left"])
    assert sum(run["programs"] for run in document["runs"]) >= len(programs)
    assert all(run["seconds"] > 0 for run in document["runs"])


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_a_program_or_says_why_not(name):
    target = result(name)["settings"]["target"]
    for row in result(name)["programs"]:
        program = Program(**row["program"])
        assert row["label"] == program.label
        assert row["status"] in STATUSES
        assert ("reason" in row) == (row["status"] != "compiled")
        if "chosen" in row:
            chosen = select(_spec(program, target)).name == program.implementation
            assert row["chosen"] == chosen
        if row["status"] == "failed":  # for one reason only, up to now
            assert row["reason"].startswith("RESOURCE_EXHAUSTED: Ran out of memory")
        if row["status"] == "compiled":
            assert re.fullmatch(r"[0-9a-f]{64}", row["hlo_sha256"])
            assert set(row) <= {
                "program", "label", "chosen", "status", "seconds", "bytes", "kernels",
                "operations", "hlo_sha256", "traced_sha256",
            }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bytes_follow_from_the_shapes_and_scores_are_held_or_not(name):
    rows = [row for row in result(name)["programs"] if row["status"] == "compiled"]
    assert check_shapes(result(name)) == len(rows) > 0
    assert check_scores(result(name)) > 0


def test_all_targets_are_here():
    assert OF_TPU in NAMES


@pytest.mark.needs_libtpu
def test_two_programs_compiled_again_are_the_same_to_the_byte():
    document = result(OF_TPU)
    here, stored = importlib.metadata.version("libtpu"), document["settings"]["compilers"]
    if stored != {"libtpu": here}:
        pytest.skip(f"stored with {stored}, here is libtpu {here}: bytes may differ")
    check_again(document)


@pytest.mark.needs_libtpu
def test_a_forged_program_is_noticed(tmp_path):
    stored = result(OF_TPU)["settings"]["compilers"]
    if stored != {"libtpu": importlib.metadata.version("libtpu")}:
        pytest.skip("another libtpu")

    def halve(document):
        row = next(r for r in document["programs"] if Program(**r["program"]) == AGAIN[1])
        row["bytes"]["temporaries"] //= 2

    with pytest.raises(AssertionError, match="bytes"):
        check_again(forged(OF_TPU, tmp_path, halve))


def test_a_forgery_without_the_compiler_is_noticed(tmp_path):
    def scoreless(document):
        row = next(r for r in document["programs"] if Program(**r["program"]) == AGAIN[1])
        row["bytes"]["temporaries"] = 0

    def larger(document):
        row = next(r for r in document["programs"] if Program(**r["program"]) == AGAIN[0])
        row["bytes"]["outputs"] *= 2

    with pytest.raises(AssertionError, match="reference"):
        check_scores(forged(OF_TPU, tmp_path, scoreless))
    with pytest.raises(AssertionError, match="outputs"):
        check_shapes(forged(OF_TPU, tmp_path, larger))
