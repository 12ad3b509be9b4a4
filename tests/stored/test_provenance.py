"""Every stored file says where it comes from, and its digest is that of what it holds."""

import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from experiments import again
from experiments.shared import SOURCES
from mha_book.storage import PROVENANCE, file_digest, payload_digest
from tests.stored.files import DATA, MANIFEST, OTHERS, RESULTS, ROOT, forged, result, scaled

BLOCKS = {path.name: result(path.name)["provenance"] for path in RESULTS}
BLOCKS |= json.loads(MANIFEST.read_text(encoding="utf8"))


def test_every_file_is_described():
    assert set(BLOCKS) == {path.name for path in [*RESULTS, *OTHERS]}


SCHEMA = yaml.safe_load(Path(__file__).with_name("provenance.yml").read_text(encoding="utf8"))


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_has_one_shape(name):
    jsonschema.validate(BLOCKS[name], SCHEMA)
    assert SCHEMA["required"] == [*PROVENANCE]


# Compared once with another library, by scripts that the commit of its block has.
ELSEWHERE = {"tests.scripts.compare_tensorgrad"}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_command_is_here_and_names_no_place_of_another_machine(name):
    command = BLOCKS[name]["command"]
    if command.startswith("none: "):
        return
    assert not re.search(r"(^|[\s=\"'])(/|[A-Z]:)", command)
    module, script = (re.search(x, command) for x in (r"-m ([\w.]+)", r"(benchmarks/\w+\.py)"))
    assert module or script
    assert not module or module[1] in ELSEWHERE or importlib.util.find_spec(module[1])
    assert not script or (ROOT / script[1]).exists()


@pytest.mark.parametrize("name", BLOCKS)
def test_inputs_are_those_that_are_here(name):
    for source, digest in BLOCKS[name]["inputs"].items():
        if source in SOURCES:  # loading them verifies the files themselves
            assert digest == SOURCES[source]
        else:
            assert digest == payload_digest(result(source)), f"{name} was made from another one"


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_files_that_are_no_json_are_those_described(path):
    assert file_digest(path) == BLOCKS[path.name]["payload_sha256"]


def test_a_changed_number_without_a_new_digest_is_refused(tmp_path):
    with pytest.raises(ValueError, match="its own digest"):
        forged("scale.json", tmp_path, lambda document: document.update(x=1), is_sealed=False)


def test_an_exhaustive_run_counts_and_names_what_differs(tmp_path):
    told = DATA / "pruning.json"
    assert again.compare(told, told)[0] == 0

    def change(document):
        scaled(document, "smollm2/whole/0/3", 1.5)
        scaled(document, "minilm/seconds/ablation", 3)  # a time, of another machine

    forged(told.name, tmp_path, change)
    count, line = again.compare(told, tmp_path / told.name)
    assert count == 1
    assert "/smollm2/whole/0/3" in line
    assert {name.split(".")[0] + ".py" for name in again.EXPERIMENTS} < {
        path.name for path in (ROOT / "experiments").iterdir()
    }
