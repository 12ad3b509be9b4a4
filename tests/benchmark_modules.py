"""The modules beside the benchmark scripts, imported as those import them."""

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["BENCHMARKS", "ROOT", "imported"]

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"


@contextlib.contextmanager
def imported(names: Sequence[str]) -> Iterator[dict[str, ModuleType]]:
    """The named modules; afterwards they and whatever they imported beside them are gone."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is not None and Path(file).parent == BENCHMARKS:
                del sys.modules[name]
