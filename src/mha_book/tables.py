"""Tables of results as text, one row a line (csv): whole or not there."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mha_book._checks import check
from mha_book.checkpoints import write_atomic

__all__ = ["read_table", "write_table"]


def write_table(path: Path, columns: Mapping[str, Any], digits: int = 6) -> None:
    """Write columns to a csv file, atomically.

    Args:
        path: the file.
        columns: arrays of one axis and one length, or lists, by name.
        digits: significant digits of floating-point numbers.

    Raises:
        ValueError: there is no column, or they differ in length.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "heads.csv"
        >>> write_table(path, {"head": [0, 1], "share": [0.25, 1 / 3]})
        >>> path.read_text().splitlines()
        ['head,share', '0,0.25', '1,0.333333']
    """
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    fits = len(shapes) == 1 and all(len(shape) == 1 for shape in shapes)
    check(fits, "columns", "one or more, of one axis and one length", f"shapes {sorted(shapes)}")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(arrays)
    for row in zip(*(array.tolist() for array in arrays.values()), strict=True):
        writer.writerow([f"{x:.{digits}g}" if isinstance(x, float) else x for x in row])
    write_atomic(path, text.getvalue().encode())


def read_table(path: Path) -> dict[str, np.ndarray]:
    """Read what :func:`write_table` wrote.

    Args:
        path: the file.

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
    rows = list(csv.reader(io.StringIO(Path(path).read_text(encoding="utf8"), newline="")))
    check(bool(rows), str(path), "a header and rows", "nothing")
    lengths = {len(row) for row in rows}
    check(len(lengths) == 1, str(path), "rows of one length", f"lengths {sorted(lengths)}")
    return {name: _column([row[i] for row in rows[1:]]) for i, name in enumerate(rows[0])}


def _column(cells: list[str]) -> np.ndarray:
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in cells])
        except ValueError:
            continue
    return np.array(cells)
