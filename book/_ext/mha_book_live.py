"""The weights of the models that run in the reader's browser, for the scripts of ``_static/live``.

SmolLM2 has those of its file. Of MiniLM each row of a matrix is written in steps of its standard
deviation over 40 (the embeddings of words) or 300 (the layers). A page opened from a file may not
fetch, so the parts are scripts which hand over a string. MiniLM's has a character for each number:
the 123 numbers nearest to zero have the characters that take one byte in UTF-8, the others those
of two, and a server that compresses sends 6 bits of most.
"""

import base64
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mha_book.models import smollm2
from mha_book.models.minilm import FILES, PACKAGE
from mha_book.storage import import_extra, installed_file

LIMIT = 64  # tokens
PARTS = 24
PART = 3 * 2**20  # bytes of SmolLM2's file
FORMAT = 1  # of the files, to be raised with every change
QUOTED = (0, 10, 13, 34, 92)  # what a string of JavaScript cannot have as it is
_LETTERS = [code for code in range(2048) if code not in QUOTED]
LARGEST = len(_LETTERS) // 2
# The character of each number from -LARGEST to LARGEST: 0, -1, 1, -2, 2, ... in their order.
TABLE = np.array(_LETTERS)[[2 * abs(n) - (n < 0) for n in range(-LARGEST, LARGEST + 1)]]
DENSE = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "intermediate.dense", "output.dense",
)  # fmt: skip


def _arrays(tensors: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the matrices (out, in) and the vectors, in the order in which the page reads them."""
    word, place, kind = (
        tensors[f"embeddings.{name}_embeddings.weight"]
        for name in ("word", "position", "token_type")
    )
    matrices, vectors = [word], [place[:LIMIT] + kind[0]]
    for layer in range(-1, 6):
        name = f"encoder.layer.{layer}." if layer >= 0 else "embeddings."
        for part in DENSE if layer >= 0 else ():
            matrices.append(tensors[f"{name}{part}.weight"])
            vectors.append(tensors[f"{name}{part}.bias"])
        for norm in ("attention.output.", "output.") if layer >= 0 else ("",):
            vectors += [tensors[f"{name}{norm}LayerNorm.{part}"] for part in ("weight", "bias")]
    return matrices, vectors


def write(folder: Path) -> dict[str, Any] | None:
    """Write the parts where they aren't yet; what the page says of them, None without the model."""
    if find_spec(PACKAGE) is None:
        return None
    told, digest = folder / "live.json", next(iter(FILES.values()))
    version = f"{FORMAT}-{PARTS}-{LIMIT}-{digest[:8]}"
    if told.exists() and (found := json.loads(told.read_text()))["version"] == version:
        return found
    weights, tokenizer = (installed_file(PACKAGE, *file) for file in FILES.items())
    matrices, vectors = _arrays(import_extra("safetensors.numpy", "models").load_file(weights))
    scales, codes = [], []
    for number, matrix in enumerate(matrices):
        fine = matrix.std(1) / (300 if number else 40)
        scales.append(np.maximum(fine, abs(matrix).max(1) / LARGEST))
        codes.append(np.rint(matrix / scales[-1][:, None]).astype(np.int16).ravel())
    floats = np.concatenate([x.ravel() for x in (*scales, *vectors)]).astype("<f4")
    vocabulary = json.loads(tokenizer.read_text(encoding="utf8"))["model"]["vocab"]
    words = "\n".join(sorted(vocabulary, key=vocabulary.get))
    first = {"words": words, "floats": base64.b64encode(floats.tobytes()).decode()}
    parts, size = [json.dumps(first, ensure_ascii=False)], 0
    for part in np.array_split(np.concatenate(codes), PARTS):
        text = TABLE.astype("<u2")[part + LARGEST].tobytes().decode("utf-16-le")
        parts.append(f'"{text}"')
    for number, part in enumerate(parts):
        text = f'mhaExplorerTake("live-{number}",{part});\n'
        size += (folder / f"live-{number}.js").write_bytes(text.encode())
    found = {"version": version, "bytes": size, "parts": len(parts), "limit": LIMIT}
    told.write_text(json.dumps(found))
    return found


def smollm2_file() -> Path | None:
    """Return where the file of SmolLM2 is; None without the model."""
    return find_spec(smollm2.PACKAGE) and installed_file(smollm2.PACKAGE, *smollm2.FILE)


def write_smollm2(folder: Path) -> None:
    """Write its parts, in base64, where they aren't yet; not among the scripts that pages read."""
    data = smollm2_file().read_bytes()
    for number, at in enumerate(range(0, len(data), PART)):
        if not (path := folder / f"smollm2-{smollm2.FILE[1][:8]}-{number}.js").exists():
            text = base64.b64encode(data[at : at + PART]).decode()
            path.write_text(f'lab.give("smollm2-{number}","{text}");\n', encoding="ascii")
