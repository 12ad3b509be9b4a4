"""Store what mha_book.notation and tensorgrad make of the same tasks, each of them tried.

tensorgrad is licensed under the AGPL and is no dependency: it lives in an environment of its own.
In a fresh one, from the root of the repository,

    pip install tensorgrad==0.3.0 torch==2.12.0 jax==0.10.2 jaxtyping==0.3.11 matplotlib==3.11.2
    PYTHONPATH=src python -m tests.scripts.compare_tensorgrad

(torch 2.13.0 has no named tensors, which tensorgrad 0.3.0 computes with). The tasks are in
``notation_tasks.py``, with our column, and tensorgrad's column is in ``notation_tensorgrad.py``.
Where tensorgrad is missing, ``--ours`` renews our column alone.
"""

import argparse
import datetime
import importlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.provenance import git_state
from mha_book.storage import seal
from tests.scripts.notation_tasks import GROUPS, OURS, TASKS, Result, attempt

__all__ = ["DESTINATION", "ours", "rows", "theirs"]

DESTINATION = Path(__file__).parents[2] / "book" / "data" / "tensorgrad.json"
COMMAND = "PYTHONPATH=src python -m tests.scripts.compare_tensorgrad"
PACKAGES = ("tensorgrad", "torch", "jax", "numpy", "networkx")
NOTE = "torch 2.13.0 has no named tensors, which tensorgrad 0.3.0 computes with"


def ours() -> dict[str, Result]:
    """Try every task with mha_book.notation."""
    return {name: attempt(OURS[name]) for name in TASKS}


def theirs() -> dict[str, tuple[Result, tuple[str, ...]]]:
    """Try every task with tensorgrad; return with each what of tensorgrad it is about."""
    from tests.scripts.notation_tensorgrad import SOURCES, THEIRS

    for sources in SOURCES.values():
        for source in sources:
            resolve(source)
    return {name: (attempt(THEIRS[name]), SOURCES[name]) for name in TASKS}


def resolve(source: str) -> Any:
    """Find what a reference names: a module, or something in one."""
    parts = source.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ValueError(f"{source}: no such module")


def rows(
    own: dict[str, Result], other: dict[str, tuple[Result, tuple[str, ...]]]
) -> list[dict[str, Any]]:
    """Join both columns."""
    return [
        {
            "task": name,
            "group": TASKS[name][0],
            "what": TASKS[name][1],
            "mha_book": own[name]._asdict(),
            "tensorgrad": {**other[name][0]._asdict(), "source": list(other[name][1])},
        }
        for name in TASKS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", action="store_true", help="renew our column alone")
    parser.add_argument("--destination", type=Path, default=DESTINATION)
    options = parser.parse_args()
    if options.ours:
        stored = json.loads(options.destination.read_text())
        own = ours()
        for row in stored["rows"]:
            row["mha_book"] = own[row["task"]]._asdict()
    else:
        provenance = {
            "command": COMMAND,
            "date": datetime.date.today().isoformat(),
            **{name: version(name) for name in PACKAGES},
            "python": platform.python_version(),
            "note": NOTE,
            "git": git_state(),
            "packages": {name: version(name) for name in PACKAGES},
            "seeds": "numpy.random.default_rng(4)",
            "inputs": {},
        }
        stored = {"provenance": provenance, "groups": GROUPS, "rows": rows(ours(), theirs())}
    options.destination.write_text(json.dumps(seal(stored), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
