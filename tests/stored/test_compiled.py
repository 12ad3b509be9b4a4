"""Stored programs that were compiled and not run: what follows from them, and a slice again."""

import importlib.metadata

import pytest

from accelerators import NOTICE, Program, _spec, plan
from harness import compiled
from mha_book.attention.dispatch import select
from tests.stored.chance import DRAWS, drawn
from tests.stored.compiled import check_again, check_arrays, check_scores, check_shapes
from tests.stored.files import TIMES, result

pytestmark = [pytest.mark.optimized, pytest.mark.loose_promotion]  # as jax.nn's own attention asks

NAMES = sorted(path.name for path in TIMES.glob("compiled-*.json"))
OF_TPU = "compiled-v6e.json"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_it_is_and_what_is_left(name):
    document = result(name)
    settings, target = document["settings"], document["settings"]["target"]
    assert (settings["notice"], settings["timed"]) == (NOTICE, False)
    assert settings["description"] == compiled.description(target)
    programs = [Program(**row["program"]) for row in document["programs"]]
    assert len(set(programs)) == len(programs)
    reached = {program.label for program in programs}
    assert {p.label for p in plan(target)} <= reached | set(document["left"])
    assert not reached & set(document["left"])
    for row, program in zip(document["programs"], programs, strict=True):
        assert row["status"] in {"compiled", "failed", "refused", "given up"}
        assert ("reason" in row) == (row["status"] != "compiled")
        if "chosen" in row and program in plan(target):
            chosen = select(_spec(program, target)).name == program.implementation
            assert row["chosen"] == chosen


@pytest.mark.parametrize("name", NAMES)
def test_bytes_follow_from_the_shapes_and_scores_are_held_or_not(name):
    assert check_shapes(result(name)) > 0
    assert check_scores(result(name)) > 0


@pytest.mark.needs_libtpu
def test_programs_compiled_again_are_the_same_to_the_byte():
    here, stored = importlib.metadata.version("libtpu"), result(OF_TPU)["settings"]["compilers"]
    if stored != {"libtpu": here}:
        pytest.skip(f"stored with {stored}, here is libtpu {here}: bytes may differ")
    for place in drawn("compiled", DRAWS["compiled"].count):
        check_again(result(OF_TPU), place)


def test_programs_for_gpus_hold_whole_arrays():
    documents = [result(f"compiled-{target}.json") for target in ("h100", "b200")]
    assert check_arrays(documents) > 90
