"""Stored programs that were compiled and not run: what follows from them, a slice, forgeries."""

import importlib.metadata

import pytest

from accelerators import NOTICE, Program, _spec, plan
from harness import compiled
from mha_book.attention.dispatch import select
from tests.stored.chance import DRAWS, drawn, programs
from tests.stored.compiled import check_again, check_arrays, check_scores, check_shapes
from tests.stored.files import TIMES, forged, result, scaled

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
    assert {p.label for p in plan(target)} == reached | set(document["left"])
    assert not reached & set(document["left"])
    for row, program in zip(document["programs"], programs, strict=True):
        assert row["status"] in {"compiled", "failed", "refused", "given up"}
        assert ("reason" in row) == (row["status"] != "compiled")
        if "chosen" in row:
            chosen = select(_spec(program, target)).name == program.implementation
            assert row["chosen"] == chosen


@pytest.mark.parametrize("name", NAMES)
def test_bytes_follow_from_the_shapes_and_scores_are_held_or_not(name):
    rows = [row for row in result(name)["programs"] if row["status"] == "compiled"]
    assert check_shapes(result(name)) == len(rows) > 0
    assert check_scores(result(name)) > 0


@pytest.mark.needs_libtpu
@pytest.mark.parametrize(
    "count, most",
    [
        (DRAWS["compiled"].fast, 30),
        pytest.param(DRAWS["compiled"].slow, 60, marks=pytest.mark.slow),
    ],
)
def test_programs_compiled_again_are_the_same_to_the_byte(count, most, tmp_path):
    here, stored = importlib.metadata.version("libtpu"), result(OF_TPU)["settings"]["compilers"]
    if stored != {"libtpu": here}:
        pytest.skip(f"stored with {stored}, here is libtpu {here}: bytes may differ")
    for place in drawn("compiled", count, programs(most)):
        check_again(result(OF_TPU), place)
    place, found = forged_row(tmp_path, FORGED[2], "arguments", 2)
    with pytest.raises(AssertionError, match="bytes"):
        check_again(found, place)


def test_programs_for_gpus_hold_whole_arrays():
    documents = [result(f"compiled-{target}.json") for target in ("h100", "b200")]
    assert check_arrays(documents) > 90
    for row in (row for document in documents for row in document["programs"]):
        program = row["program"]
        # Three have no other to be compared with.
        is_alone = program["implementation"] == "blockwise" and (
            program["dtype"] == "float32" or program["num_kv_heads"] == 2
        )
        if row["status"] == "compiled" and program["part"] in ("attention", "layer"):
            kept = row["bytes"]
            row["bytes"] = {**kept, "temporaries": int(1.1 * kept["temporaries"])}
            if not is_alone:
                with pytest.raises(AssertionError):
                    check_arrays(documents)
            row["bytes"] = kept


FORGED = [
    Program("attention", name, 2048, num_kv_heads=8) for name in ("splash", "reference", "flash")
]


def test_a_forgery_without_the_compiler_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="reference"):
        check_scores(forged_row(tmp_path, FORGED[1], "temporaries", 0)[1])
    with pytest.raises(AssertionError, match="outputs"):
        check_shapes(forged_row(tmp_path, FORGED[0], "outputs", 2)[1])


def forged_row(folder, program, name, factor):
    """The place of a program, and the file with its bytes changed."""
    place = [Program(**row["program"]) for row in result(OF_TPU)["programs"]].index(program)
    path = f"programs/{place}/bytes/{name}"
    return place, forged(OF_TPU, folder, lambda document: scaled(document, path, factor))
