"""The comparison of an exhaustive recomputation: what is the same, what differs, what is left."""

import json

import numpy as np
import pytest

from experiments import again
from mha_book.storage import read_table, save_arrays, seal, write_table
from tests.stored.files import DATA, OTHERS, RESULTS


@pytest.mark.parametrize(
    "path", [p for p in [*RESULTS, *OTHERS] if p.parent == DATA], ids=lambda path: path.name
)
def test_a_stored_file_is_the_same_as_itself(path):
    count, line = again.compare(path, path)
    assert count == 0
    assert ": 0 of " in line


def test_what_differs_is_counted_and_named(tmp_path):
    told = DATA / "pruning.json"
    document = json.loads(told.read_text())
    document["smollm2"]["whole"][0][3] += 0.5
    document["minilm"]["seconds"]["ablation"] *= 3  # a time, of another machine
    (tmp_path / told.name).write_text(json.dumps(seal(document)))
    count, line = again.compare(told, tmp_path / told.name)
    assert count == 1
    assert "/smollm2/whole/0/3" in line
    del document["smollm2"]["whole"]
    (tmp_path / told.name).write_text(json.dumps(seal(document)))
    assert again.compare(told, tmp_path / told.name)[0] == 48


def test_tables_and_arrays_are_compared_too(tmp_path):
    told = DATA / "heads-minilm.csv"
    table = read_table(told)
    table["special"] = table["special"] + 0.1
    write_table(tmp_path / told.name, table)
    assert again.compare(told, tmp_path / told.name)[0] == 72
    for name, value in (("one", 1.0), ("other", 2.0)):
        save_arrays(tmp_path / f"{name}.safetensors", {"w": np.full(3, value, np.float32)})
    paths = (tmp_path / f"{name}.safetensors" for name in ("one", "other"))
    assert again.compare(*paths)[0] == 3


def test_a_name_that_is_no_experiment_is_refused(capsys):
    with pytest.raises(SystemExit):
        again.main(["prunning"])
    assert "expected one of hand_gradients" in capsys.readouterr().err
    assert set(again.EXPERIMENTS) < {path.stem for path in (again.ROOT / "experiments").glob("*")}
