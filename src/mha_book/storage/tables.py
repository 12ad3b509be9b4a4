"""Tables of text: a csv file, one row a line."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mha_book._checks import check, check_size, check_type
from mha_book.storage.arrays import plain_array
from mha_book.storage.files import check_text, write_atomic

__all__ = ["read_table"]


def write_table(path: Path | str, columns: Mapping[str, Any], digits: int = 6) -> None:
    """Write columns, arrays or lists of one length by name, to a csv file, atomically.

    Floating-point numbers get so many significant ``digits``. Refused are masked arrays, integers
    that NumPy would round, and cells with a carriage return, which would end a row.
    """
    check_type(columns, "columns", Mapping)
    check_size(digits, "digits")
    arrays = {name: _written(column, f"columns[{name!r}]") for name, column in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    fits = len(shapes) == 1 and all(len(shape) == 1 for shape in shapes)
    check(fits, "columns", "one or more, of one axis and one length", f"shapes {sorted(shapes)}")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(arrays)
    for row in zip(*(array.tolist() for array in arrays.values()), strict=True):
        writer.writerow([f"{x:.{digits}g}" if isinstance(x, float) else x for x in row])
    check("\r" not in text.getvalue(), "columns", "cells without a carriage return", "one with it")
    check_text(text.getvalue(), "columns")
    write_atomic(path, text.getvalue().encode())


def _written(column: Any, name: str) -> np.ndarray:
    """Return a column as NumPy has it, which makes floats of some integers."""
    array = plain_array(column, name)
    if array.dtype.kind in "fO" and not hasattr(column, "dtype"):
        lost = [x for x in column if isinstance(x, int) and abs(x) > 2**53]
        if not lost:
            return array
        whole = _integers(column) if all(isinstance(x, int) for x in column) else None
        check(whole is not None, name, "integers that all fit into 64 bits", f"{lost[:1]} and more")
        return np.asarray(whole)
    return array


def _integers(numbers: Sequence[int]) -> np.ndarray | None:
    """Return integers of 64 bits with or without a sign; None where neither holds them all."""
    for dtype in (np.int64, np.uint64):
        limits = np.iinfo(dtype)
        if all(limits.min <= number <= limits.max for number in numbers):
            return np.array(numbers, dtype)
    return None


def read_table(path: Path | str) -> dict[str, np.ndarray]:
    """Read what :func:`write_table` wrote.

    Returns:
        Columns by name: integers, floating-point numbers, or strings where one is no number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no header, or a row of another length.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "heads.csv"
        >>> write_table(path, {"head": [0, 1], "kind": ["local", "sink"]})
        >>> {name: column.tolist() for name, column in read_table(path).items()}
        {'head': [0, 1], 'kind': ['local', 'sink']}
    """
    try:
        text = Path(path).read_text(encoding="utf8")
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a table in UTF-8; got {error}") from error
    check(bool(rows and rows[0]), str(path), "a header and rows", "nothing")
    lengths = {len(row) for row in rows}
    check(len(lengths) == 1, str(path), "rows of one length", f"lengths {sorted(lengths)}")
    check(len({*rows[0]}) == len(rows[0]), str(path), "different names of columns", rows[0])
    return {name: _column([row[i] for row in rows[1:]]) for i, name in enumerate(rows[0])}


_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?|\.[0-9]+|inf|nan)", re.IGNORECASE)


def _column(cells: list[str]) -> np.ndarray:
    """Return the numbers, as :func:`write_table` writes them: Python would read 1_2 as 12."""
    if all(_INTEGER.fullmatch(cell) for cell in cells):
        numbers = _integers([int(cell) for cell in cells])
        if numbers is not None:
            return numbers
    if all(_NUMBER.fullmatch(cell) for cell in cells):
        return np.array([float(cell) for cell in cells])
    return np.array(cells)
