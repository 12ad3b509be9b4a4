"""What the explorer of heads shows is what the models do: its maps computed again."""

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from experiments import explorer_maps
from mha_book.models import minilm, smollm2
from mha_book.models.tokens import token_strings, tokenize
from mha_book.storage import file_digest, read_table
from tests.book.extensions import ROOT, explorer
from tests.stored import trained_heads as again
from tests.stored.chance import drawn
from tests.stored.files import DATA, result

FOLDER = ROOT / "book" / "_static" / "explorer"
NAME = "explorer.json"
LONGEST = 23  # tokens
LARGEST = 2_000_000  # bytes of all maps
SHAPES = {"smollm2": (30, 9), "minilm": (6, 12)}
HEADS = {model: [*np.ndindex(shape)] for model, shape in SHAPES.items()}
CLOSED = {model: drawn(f"closed in {model}", heads, 1)[0] for model, heads in HEADS.items()}


def files() -> list[tuple[str, str]]:
    return [(model, key) for key in result(NAME)["sentences"] for model in SHAPES]


def test_the_files_are_those_that_were_stored():
    paths = sorted(FOLDER.iterdir())
    assert {path.stem for path in paths} == {f"{model}-{key}" for model, key in files()}
    assert sum(path.stat().st_size for path in paths) < LARGEST
    for model, key in files():
        told = result(NAME)["sentences"][key][model]["sha256"]
        assert file_digest(FOLDER / f"{model}-{key}.js") == told, (model, key)


@pytest.mark.parametrize("model, key", files())
def test_a_sentence_begins_where_there_is_something_to_see(model, key):
    document = result(NAME)
    look = document["sentences"][key][model]["look"]
    weights = explorer.maps_of(ROOT, document, model, key)["weights"]
    row = weights[look["layer"], look["head"], look["query"]]
    assert row.argmax() == look["key"]
    assert row.max() > 0.4
    assert [*look.values()] == explorer_maps.SENTENCES[key][model]


def computed(model: str, text: str):
    """Tokens, weights, norms of values and what closing one head does, by the model alone."""
    loaded = again.language_model() if model == "smollm2" else again.encoder()
    ids, lengths = tokenize(loaded, [text])
    count = int(lengths[0])
    ids = jnp.pad(ids, ((0, 0), (0, LONGEST - count)))  # sentences of one length: fewer programs
    params = loaded.params
    gates = np.ones(SHAPES[model], np.float32)
    gates[CLOSED[model]] = 0
    if model == "smollm2":
        _, records = smollm2.forward_with_intermediates(params, ids, lengths)
        before, after = (
            smollm2.token_losses(params, ids, lengths, gates=jnp.asarray(g))
            for g in (np.ones_like(gates), gates)
        )
        change = np.asarray(after - before)[0, : count - 1]
    else:
        hidden, records = minilm.encode_with_intermediates(params, ids, lengths)
        closed = minilm.encode(params, ids, lengths, gates=jnp.asarray(gates))
        one, other = (np.asarray(x[-1][0, :count], float).mean(0) for x in (hidden, closed))
        change = 1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    found = []
    for layer, head in HEADS[model]:
        inside = records[layer].intermediates
        value = np.asarray(inside.value[0])[:, :count]
        group = SHAPES[model][1] // len(value)
        handed = value[head // group] @ np.asarray(params.layers[layer].attention.w_o[head])
        norms = np.linalg.norm(handed, axis=-1)
        weights = np.asarray(inside.weights[0, head, :count, :count])
        found.append((weights, norms / norms.max()))
    return token_strings(loaded, ids[0, :count]), found, change


def check_slice(document):
    for model in SHAPES:
        for key in document["sentences"]:
            sentence = document["sentences"][key]
            maps = explorer.maps_of(ROOT, document, model, key)
            tokens, heads, change = computed(model, sentence["text"])
            assert sentence[model]["tokens"] == tokens
            for place, (weights, norms) in zip(HEADS[model], heads, strict=True):
                np.testing.assert_allclose(maps["weights"][place], weights, atol=1e-2)
                np.testing.assert_allclose(maps["values"][place], norms, atol=1e-2)
                brought = maps["weights"][place] * maps["values"][place]
                np.testing.assert_allclose(brought, weights * norms, atol=1e-2)
            told = maps["without"][CLOSED[model]]
            np.testing.assert_allclose(told, change, atol=1e-2 if model == "smollm2" else 1e-4)


@pytest.mark.slow
@pytest.mark.needs_models
def test_the_maps_are_those_of_the_models():
    check_slice(result(NAME))


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
