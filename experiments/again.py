"""Run experiments again, in full, and compare every number with the stored one.

    python -m experiments.again [NAME ...]

Without names all of them, one after the other: about four hours of one core. Results go to
_build/again, checkpoints beside them, so that it goes on where it was stopped. For each file it
prints how many numbers differ by more than rounding between machines makes, and the largest
difference with its place; the exit status is 1 where there are any.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared import MANIFEST, ROOT
from mha_book.storage import load_arrays, read_result, read_table

ELSEWHERE = {"conventions", "empty_rows", "head_memory", "induction", "pods"}
"""Those that ask for other libraries, for times, or that a page does anew."""
ALL = {
    path.stem + ("" if function == "main" else f".{function}")
    for path in Path(__file__).parent.glob("*.py")
    for function in re.findall(r"^@experiment\(.*?^def (\w+)", path.read_text("utf8"), re.M | re.S)
}
EXPERIMENTS = sorted(ALL - ELSEWHERE)
APART: dict[str, Any] = {"rtol": 0.02, "atol": 0.02}  # of trainings of hundreds of steps
MEASURED = ("seconds", "memory", "provenance")


def command(name: str) -> Any:
    """Return an experiment by its module, or its module and function."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"experiments.{module}"), function or "main")


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, text and None of a document with its place, ``/name/0/name``."""
    if isinstance(value, dict | list):
        for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(entry, f"{place}/{name}")
    else:
        yield place, value


def numbers(path: Path) -> dict[str, float]:
    """Return the numbers of a file by their places, times and the like left out."""
    if path.suffix == ".json":
        found = read_result(path)
    else:
        columns = read_table(path) if path.suffix == ".csv" else load_arrays(path)[0]
        found = {name: np.ravel(column).tolist() for name, column in columns.items()}
    return {
        place: float(value)
        for place, value in leaves(found)
        if isinstance(value, int | float) and not any(word in place for word in MEASURED)
    }


def compare(told: Path, found: Path) -> tuple[int, str]:
    one, other = numbers(told), numbers(found)
    absent = set(other) - set(one)  # what was stored of parts that no page shows is not made again
    same = sorted(set(one) & set(other))
    a, b = (np.array([of[place] for place in same]) for of in (one, other))
    far = ~np.isclose(a, b, equal_nan=True, **APART)
    gap = np.nan_to_num(np.abs(a - b))
    line = f"{told.name}: {far.sum()} of {len(same)} numbers differ, {len(absent)} are not stored"
    if len(same):
        worst = int(gap.argmax())
        line += f"; most at {same[worst]}: {a[worst]:.6g} stored, {b[worst]:.6g} now"
    return int(far.sum()) + len(absent), line


def main(given: list[str] | None = None) -> int:
    """Run experiments again and compare; return how many files differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--to", type=Path, default=ROOT / "_build" / "again")
    options = parser.parse_args(given)
    unknown = set(options.names) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"NAME: expected one of {', '.join(EXPERIMENTS)}; got {sorted(unknown)}")
    for name in options.names or EXPERIMENTS:
        paths = ["--out", str(options.to), "--work", str(options.to / "work")]
        command(name)(paths)
    differ = 0
    for path in sorted(options.to.iterdir()):
        if path.is_file() and path.name != MANIFEST:
            count, line = compare(ROOT / "book" / "data" / path.name, path)
            print(line)
            differ += bool(count)
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
