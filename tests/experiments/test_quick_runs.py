"""A third of the experiments in their quick form, from the command line to the stored result."""

import importlib
from pathlib import Path

import pytest

from experiments.again import ALL, command, numbers
from mha_book.storage import read_result
from tests.turns import in_turn

MODELS, TORCH = pytest.mark.needs_models, pytest.mark.needs_torch
FOLDER = Path(__file__).parents[2] / "experiments"
NEEDS = {  # those that do not run on small made-up models
    **dict.fromkeys(
        ("build_it_yourself", "cache_bits", "catalogue", "circuit", "explorer_maps", "heads_in_use",
         "hidden_bugs", "induction", "papers", "positions", "quantization", "resting", "sinks",
         "transition.text"), MODELS,
    ),
    **dict.fromkeys(("conventions", "empty_rows"), TORCH),
    "pods": pytest.mark.needs_libtpu,
}  # fmt: skip


def marks_of(name: str) -> list:
    return [in_turn(name), *([NEEDS[name]] if name in NEEDS else [])]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_what_it_imports_is_there(path: Path) -> None:
    importlib.import_module(f"experiments.{path.stem}")


@pytest.mark.parametrize("name", [pytest.param(n, marks=marks_of(n)) for n in sorted(ALL)])
def test_the_quick_form_stores_a_result(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if NEEDS.get(name) is not MODELS:
        request.getfixturevalue("small_world")
    command(name)(["--quick", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")])
    found = [path for path in (tmp_path / "out").glob("*.json") if path.name != "manifest.json"]
    assert len(found) == 1
    told = read_result(found[0])["provenance"]["command"]
    assert told == f"python -m experiments.{name.removesuffix('.text')} --quick"
    assert len(numbers(found[0])) > 5
