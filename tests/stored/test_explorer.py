"""What the explorer of heads shows is what the models do: its maps computed again."""

import numpy as np
import pytest
import yaml

from experiments import explorer_maps
from mha_book.storage import file_digest, read_table
from tests.book.extensions import ROOT, explorer
from tests.stored import trained_heads as again
from tests.stored.chance import DRAWS, drawn
from tests.stored.files import DATA, result
from tests.turns import in_turn

pytestmark = pytest.mark.optimized

FOLDER = ROOT / "book" / "_static" / "explorer"
NAME = "explorer.json"
LONGEST = 23  # tokens
LARGEST = 2_000_000  # bytes of all maps
SHAPES = {"smollm2": (30, 9), "minilm": (6, 12)}
HEADS = {model: [*np.ndindex(shape)] for model, shape in SHAPES.items()}


def files() -> list[tuple[str, str]]:
    return [(model, key) for key in result(NAME)["sentences"] for model in SHAPES]


def test_the_files_are_those_that_were_stored():
    paths = sorted(FOLDER.iterdir())
    assert {path.stem for path in paths} == {f"{model}-{key}" for model, key in files()}
    assert sum(path.stat().st_size for path in paths) < LARGEST
    for model, key in files():
        told = result(NAME)["sentences"][key][model]["sha256"]
        assert file_digest(FOLDER / f"{model}-{key}.js") == told, (model, key)
    script = (FOLDER.parent / "explorer.js").read_text(encoding="utf8")  # reads what Python reads
    assert [script.count(x) for x in ("] / 255;", ") / 1e5;", ") / 1e3 :")] == [2, 1, 1]


@pytest.mark.parametrize("model, key", files())
def test_a_sentence_begins_where_there_is_something_to_see(model, key):
    document = result(NAME)
    look = document["sentences"][key][model]["look"]
    weights = explorer.maps_of(ROOT, document, model, key)["weights"]
    row = weights[look["layer"], look["head"], look["query"]]
    assert row.argmax() == look["key"]
    assert row.max() > 0.4
    assert [*look.values()] == explorer_maps.SENTENCES[key][model]


@in_turn("maps")
@pytest.mark.needs_models
@pytest.mark.parametrize("model", SHAPES)
def test_the_maps_are_those_of_the_models(model):
    """All weights and lengths of values of drawn sentences, and in each some heads closed."""
    loaded, document = (
        again.language_model() if model == "smollm2" else again.encoder(),
        result(NAME),
    )
    places = {*drawn("closed", DRAWS["closed"].count)} if model == "smollm2" else {*HEADS[model]}
    measured = explorer_maps.maps_of(model, loaded, LONGEST, sorted(places))
    for key, sentence in document["sentences"].items():
        told, found = explorer.maps_of(ROOT, document, model, key), measured(sentence["text"])
        assert sentence[model]["tokens"] == found.tokens
        for name in ("weights", "values"):
            np.testing.assert_allclose(told[name], getattr(found, name), atol=1e-2)
        brought = told["weights"] * told["values"][:, :, None]
        np.testing.assert_allclose(brought, found.weights * found.values[:, :, None], atol=1e-2)
        where = tuple(np.transpose(sorted(places)))
        near = 1e-2 if model == "smollm2" else 1e-4
        np.testing.assert_allclose(told["without"][where], found.without[where], atol=near)


@pytest.mark.parametrize("model", SHAPES)
def test_measures_are_those_of_the_tables(model):
    """And random weights of the same shape are told apart from trained ones."""
    found = result(NAME)["measures"][model]
    table = read_table(DATA / f"heads-{model}.csv")
    for title, measure in explorer_maps.MEASURES.items():
        if title in found:
            told = table[measure].reshape(SHAPES[model])
            np.testing.assert_allclose(found[title]["trained"], told, rtol=1e-3)
            assert found[title]["even"] == pytest.approx(
                table[f"{measure} (uninformed)"][0], rel=1e-3
            )
            assert np.shape(found[title]["untrained"]) == SHAPES[model]
    drawn, trained = (np.array(found["previous token"][k]) for k in ("untrained", "trained"))
    assert drawn.max() < 0.2 < 0.7 < trained.max()
    source = result("heads.json" if model == "smollm2" else "pruning.json")
    source = source if model == "smollm2" else source["minilm"]
    lost = np.array(source["importance"]["ablation"])
    np.testing.assert_allclose(found["without it"]["trained"], lost, rtol=1e-3)
    notes = yaml.safe_load((ROOT / "book" / "explorer.yml").read_text(encoding="utf8"))
    assert set(found) <= set(notes)
