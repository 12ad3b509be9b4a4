"""Every stored file says where it comes from, and its digest is that of what it holds."""

import importlib.util
import json
import re

import jsonschema
import pytest

from experiments import again
from experiments.shared import SOURCES
from mha_book.storage import NOT_RECORDED, PROVENANCE, file_digest, payload_digest
from tests.stored.files import DATA, MANIFEST, OTHERS, RESULTS, ROOT, forged, result, scaled

BLOCKS = {path.name: result(path.name)["provenance"] for path in RESULTS}
BLOCKS |= json.loads(MANIFEST.read_text(encoding="utf8"))


def test_every_file_is_described():
    assert set(BLOCKS) == {path.name for path in [*RESULTS, *OTHERS]}


def _text(pattern=r".+"):
    return {"type": "string", "pattern": f"^({pattern})$"}


def _or_unknown(kind):
    return {"anyOf": [kind, {"const": NOT_RECORDED}]}


def _object(required, optional=(), **options):
    known = {"properties": {**required, **dict(optional)}, "additionalProperties": False}
    return {"type": "object", "required": [*required], **known, **options}


COMMIT, SHA256 = _text("[0-9a-f]{40}"), _text("[0-9a-f]{64}")
COUNT, TEXTS = {"type": "integer", "minimum": 1}, {"type": "array", "items": _text()}
LOAD = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
UNKNOWN = {"const": NOT_RECORDED}
SCHEMA = _object(
    {
        "date": _text(r"\d{4}-\d\d-\d\d(T[\d:]{8}\+00:00)?"),
        "command": _text(),
        # Where the code's commit was not recorded, that which brought the file is.
        "git": {
            "oneOf": [
                _object({"commit": COMMIT, "dirty": {"type": "boolean"}}),
                _object({"commit": UNKNOWN, "dirty": UNKNOWN, "added_in": COMMIT}),
            ]
        },
        "python": _text(r"3\.\d+\.\d+|none: written by hand"),
        "packages": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "system": _text(),
        "device": _text(),
        "cores": _or_unknown(COUNT),
        "seeds": _text(),  # what was drawn is known of each
        "inputs": {"type": "object", "additionalProperties": SHA256},
        "payload_sha256": SHA256,
    },
    {
        "filled_in_later": TEXTS,
        "note": _text(),
        "measured_again": {"type": "object"},
        # What matters to times and memory.
        "platform": _text("cpu|gpu|tpu"),
        "device_count": COUNT,
        "cpu_model": _text(),
        "memory_gib": {"type": "number"},
        "load_average": LOAD,
        "load_average_after": LOAD,
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
    },
)


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_has_one_shape(name):
    jsonschema.validate(BLOCKS[name], SCHEMA)
    assert list(SCHEMA["required"]) == list(PROVENANCE)


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
    assert {f"{name}.py" for name in again.EXPERIMENTS} < {
        path.name for path in (ROOT / "experiments").iterdir()
    }
