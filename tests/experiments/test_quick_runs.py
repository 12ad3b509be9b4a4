"""Each experiment in its quick form, from the command line to the stored result."""

import importlib
from pathlib import Path

import pytest

from experiments.again import numbers
from mha_book.storage import read_result

pytestmark = pytest.mark.unoptimized
SLOW, MODELS = pytest.mark.slow, pytest.mark.needs_models
QUICK = {  # those that run on small made-up models, and those that need the trained ones
    "heads": (SLOW,),
    "head_memory": (SLOW,),
    "later_senders": (SLOW, MODELS),
    "scale": (SLOW,),
    "empty_rows": (SLOW, pytest.mark.needs_torch),
    "conventions": (SLOW, pytest.mark.needs_torch),
    "hand_gradients": (SLOW,),
    "dropout": (SLOW,),
    "sharing": (SLOW,),
    "gates": (SLOW,),
    "gates_quiet": (SLOW,),
    "pruning": (SLOW,),
    "pruning_alike": (SLOW,),
    "emergence": (SLOW,),
    "coverage": (SLOW,),
    "sinks_training": (SLOW,),
    "hidden_bugs": (SLOW, MODELS),
    "ring_memory": (SLOW,),
    "pods": (SLOW, pytest.mark.needs_libtpu),
    **dict.fromkeys(
        ("heads_in_use", "circuit", "papers", "positions", "sinks", "quantization", "cache_bits"),
        (SLOW, MODELS),
    ),
    "explorer_maps": (SLOW, MODELS),
    "build_it_yourself": (SLOW, MODELS),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in QUICK.items()])
def test_the_quick_form_stores_a_result(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if MODELS not in QUICK[name]:
        request.getfixturevalue("small_world")
    main = importlib.import_module(f"experiments.{name}").main
    main(["--quick", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")])
    found = [path for path in (tmp_path / "out").glob("*.json") if path.name != "manifest.json"]
    assert len(found) == 1
    command = read_result(found[0])["provenance"]["command"]
    assert command == f"python -m experiments.{name} --quick"
    assert len(numbers(found[0])) > 5


def test_every_experiment_has_a_quick_run() -> None:
    folder = Path(__file__).parents[2] / "experiments"
    texts = {path.stem: path.read_text() for path in folder.glob("*.py")}
    assert set(QUICK) == {name for name, text in texts.items() if "@experiment(" in text}
