"""Files that were cut, flipped or made to harm: read whole, or refused with a ``ValueError``."""

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_book.storage import load_arrays, read_table, save_arrays
from tests.notation.helpers import examples

pytestmark = pytest.mark.usefixtures("no_type_checks")

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "flags": np.array([True, False])}
METADATA = {"config": {"d_model": 6}, "note": "ü"}


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Bytes that were cut, flipped, doubled, left out or put in, once or several times."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(content) + 1)
        end = min(len(content), at + draw.choice((1, 1, 2, 8, 100)))
        new = draw.choice(
            (b"", content[at:end] * 2, bytes(draw.randrange(256) for _ in range(end - at)),
             b"\x00", b"9", b"-", b'"', b"[", b"{" * 50, b"\xff\xff\xff\xff\xff\xff\xff\x7f")
        )  # fmt: skip
        content = draw.choice((content[:at] + new + content[end:], content[:at]))
    return content


def says_where(error: ValueError, path: Path) -> None:
    assert str(error).startswith(f"{path}: expected")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@examples(60, 3000)
def test_damaged_arrays_are_refused(count: int, place: Path) -> None:
    whole, path = place / "whole.safetensors", place / "damaged.safetensors"
    save_arrays(whole, ARRAYS, METADATA)
    content = whole.read_bytes()

    @settings(max_examples=count)
    @given(st.randoms(use_true_random=False))
    def check(draw: random.Random) -> None:
        path.write_bytes(damaged(draw, content))
        try:
            arrays, metadata = load_arrays(path)
        except ValueError as error:
            says_where(error, path)
            return
        assert metadata == METADATA  # what was damaged means the same: a space, a key's order
        assert arrays.keys() == ARRAYS.keys()
        assert all(arrays[name].tobytes() == ARRAYS[name].tobytes() for name in ARRAYS)

    check()


def test_a_bit_of_the_numbers_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "flipped.safetensors"
    save_arrays(path, ARRAYS, METADATA)
    *rest, last = path.read_bytes()
    path.write_bytes(bytes([*rest, last ^ 1]))
    with pytest.raises(ValueError, match="its own digest"):
        load_arrays(path)


def with_header(header: Any, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE = {
    "a header of 2^62 bytes": (2**62).to_bytes(8, "little") + b"{}",
    "no header": b"", "a list": with_header([]), "nested lists": with_header(b"[" * 100_000),
    "no digest": with_header({"w": entry()}),
    "a shape of 2^60": with_header({"w": entry(shape=(2**60,))}),
    "a dtype of another world": with_header({"w": entry(dtype="PICKLE")}),
    "half a dtype": with_header({"w": entry(dtype="BF16", shape=(4,))}),
    "metadata of numbers": with_header({"w": entry(), "__metadata__": {"sha256": 1}}),
    "metadata that is a list": with_header({"w": entry(), "__metadata__": []}),
    "a header of a million names": with_header(b'{"":0' + b',"":0' * 10**6 + b"}"),
    "arrays that overlap": with_header({"w": entry(), "v": entry(offsets=(4, 12))}, b"\0" * 12),
    "pickled": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_arrays_made_to_harm_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected"):
            load_arrays(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(HOSTILE[name]) + 10**6


@pytest.mark.parametrize(
    "cells, kind",
    [(["1_2", "3_4"], "U"), (["٣"], "U"), ([" 1"], "U"), (["9" * 400], "f"), (["9" * 19], "u"),
     (["1", "-2"], "i"), (["1e-05", "nan", "-inf", ".5", "5."], "f"), (["0x10"], "U")],
)  # fmt: skip
def test_a_column_is_numbers_as_they_are_written(
    cells: list[str], kind: str, tmp_path: Path
) -> None:
    """Python reads 1_2 as 12, and 400 digits as an object: a table of names has to stay one."""
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["x", *cells]))
    column = read_table(path)["x"]
    assert column.dtype.kind == kind
    if kind == "U":
        assert column.tolist() == cells
