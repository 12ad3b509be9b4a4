"""Where stored results lie, and how a test forges one as a careful forger would."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mha_book.storage import read_result, seal

ROOT = Path(__file__).parents[2]
DATA, TIMES = ROOT / "book" / "data", ROOT / "benchmarks" / "results"
MANIFEST = DATA / "manifest.json"
VERSIONS = ROOT / "tests" / "data" / "versions.json"
RESULTS = sorted(p for p in [*DATA.glob("*.json"), *TIMES.glob("*.json")] if p != MANIFEST)
OTHERS = sorted(p for p in DATA.iterdir() if p.suffix != ".json")
RERUNS = yaml.safe_load((ROOT / "book" / "reruns.yml").read_text(encoding="utf8"))


def result(name: str) -> dict[str, Any]:
    """A stored result by the name of its file, its digest verified."""
    return read_result(next(path for path in (*RESULTS, VERSIONS) if path.name == name))


def forged(
    name: str, folder: Path, change: Callable[[dict[str, Any]], None], is_sealed: bool = True
) -> dict[str, Any]:
    """A copy of a result, changed, with a digest made anew or the old one, and read again."""
    document = copy.deepcopy(result(name))
    change(document)
    path = folder / name
    path.write_text(json.dumps(seal(document) if is_sealed else document), encoding="utf8")
    found = read_result(path)
    assert found != result(name)
    return found


def scaled(value: Any, path: str, factor: float) -> None:
    """Multiply in place the numbers at a path of names and places; ``*`` is every one."""
    name, _, rest = path.partition("/")
    places = range(len(value)) if isinstance(value, list) else list(value)
    for place in places:
        if name in ("*", str(place)):
            if rest:
                if not isinstance(value[place], (int, float)):
                    scaled(value[place], rest, factor)
            else:
                value[place] = _times(value[place], factor)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, list):
        return [_times(entry, factor) for entry in value]
    if isinstance(value, dict):
        return {name: _times(entry, factor) for name, entry in value.items()}
    return value * factor if isinstance(value, (int, float)) else f"not {value}"


def close(found: Any, told: Any, **how: Any) -> None:
    """Within what a forward pass in float32 differs by between machines, far below it."""
    np.testing.assert_allclose(found, told, **({"rtol": 2e-3, "atol": 5e-4} | how))


def recomputed(find: Callable[..., Any]) -> Callable[..., None]:
    """A check of a stored file by what ``find`` yields: a place, what is found, how near it is.

    A place is names and numbers, and at the end an index of the array there. What is found is kept.
    """
    found = functools.cache(lambda *given: list(find(*given)))

    @functools.wraps(find)
    def check(document: dict[str, Any], *given: Any) -> None:
        for place, value, *how in found(*given):
            told: Any = document
            for key in place:
                is_plain = isinstance(key, str) or (isinstance(told, list) and isinstance(key, int))
                told = told[key] if is_plain else np.array(told)[key]
            close(value, told, **(how[0] if how else {}), err_msg=str(place))

    return check
