"""Files that are written through links and onto a full disk, and read again to the last bit."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from mha_book.storage import (
    load_arrays,
    load_tree,
    read_table,
    save_arrays,
    tree_arrays,
    write_atomic,
    write_table,
)

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_one_and_leads_to_the_new_content(tmp_path: Path, is_there: bool) -> None:
    """It was replaced by a file, and what it led to stayed old."""
    target, link = tmp_path / "kept" / "target", tmp_path / "link"
    if is_there:
        write_atomic(target, b"old")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch, failing: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


@pytest.mark.parametrize("order", ["<", ">"])
def test_whatever_is_saved_is_loaded(tmp_path: Path, order: str) -> None:
    arrays = {code: np.arange(3).astype(f"{order}{code}") for code in DTYPES}
    arrays |= {"": np.array(7.0), "strided": np.arange(8)[::-2], "ü/é": np.ones((2, 0))}
    path = str(tmp_path / "file.safetensors")  # a string serves as a path does
    save_arrays(path, arrays, {"format": "own"})
    found, metadata = load_arrays(path)
    assert metadata == {"format": "own"}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=False)
        assert found[name].dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    ("arrays", "metadata", "message"),
    [
        ({"__metadata__": np.ones(2)}, {}, "arrays: expected names .* none of them __metadata__"),
        ({3: np.ones(2)}, {}, "arrays: expected names that are strings"),
        ({"a": np.ones(2)}, {"sha256": "x"}, "metadata: expected names .* none of them sha256"),
        ({"a": np.ones(2)}, {3: 4}, "metadata: expected names that are strings"),
        ({"a": np.ones(2, np.longdouble)}, {}, "a: expected float16, 32 or 64.*longdouble|float"),
        ({"a": np.ones(2, complex)}, {}, "a: expected float16, 32 or 64"),
        ({"a": np.array(["x"])}, {}, "a: expected float16, 32 or 64"),
        ({"a": np.array([None])}, {}, "a: expected float16, 32 or 64"),
    ],
)
@pytest.mark.usefixtures("no_type_checks")
def test_what_could_not_be_loaded_is_not_saved(tmp_path, arrays, metadata, message) -> None:
    with pytest.raises(ValueError, match=message):
        save_arrays(tmp_path / "file.safetensors", arrays, metadata)
    assert not os.listdir(tmp_path)


def test_cells_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = str(tmp_path / "table.csv")
    cells = ["e\nf", 'g"h,i', "", " ü"]
    write_table(path, {"cell": cells})
    assert read_table(path)["cell"].tolist() == cells
    for cell in ("a\rb", "a\r\nb"):
        with pytest.raises(ValueError, match="columns: expected cells without a carriage return"):
            write_table(path, {"cell": [cell]})


@pytest.mark.parametrize(
    "numbers", [[2**62 + 1, -3], [2**63 - 1, -(2**63)], [2**64 - 1, 0], np.array([10**18 + 7])]
)
def test_no_digit_of_an_integer_is_lost(tmp_path: Path, numbers: list[int]) -> None:
    """Those of 19 digits were read as floating-point numbers."""
    path = tmp_path / "table.csv"
    write_table(path, {"x": numbers})
    assert read_table(path)["x"].tolist() == list(numbers)


@pytest.mark.parametrize("value", [np.array([2**40 + 5]), np.array([1 + 2.0**-40])])
def test_a_tree_keeps_its_64_bits(value: np.ndarray) -> None:
    """2**40 + 5 became 5 after its dtype had been found right."""
    found = load_tree(tree_arrays({"x": value}), {"x": value})["x"]
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(np.asarray(found), value)


def test_no_array_of_a_tree_is_dropped() -> None:
    arrays = tree_arrays({"x": np.ones(2), "y": np.ones(3)}, "t") | {"tx": np.ones(1)}
    with pytest.raises(ValueError, match=r"like: expected a place .* none for \[\"t\['y'\]\"\]"):
        load_tree(arrays, {"x": np.ones(2)}, "t")
    assert load_tree(arrays, {"x": np.ones(2), "y": np.ones(3)}, "t")["y"].shape == (3,)
