"""What importing the package costs, and which module may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.extensions import modules

SOURCE = Path(__file__).parents[1] / "src" / "mha_book"
PATHS = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
HEAVY = ("matplotlib", "optax", "safetensors", "scipy.stats", "tokenizers", "gguf", "networkx")
ENTRIES = modules.load_modules()
NAMES = modules.module_names(ENTRIES)


def dotted(path: Path) -> str:
    """The name below ``mha_book`` of a source file; a folder has the name of its ``__init__``."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def entry(name: str) -> modules.Module:
    return next(m for m in ENTRIES if m.name == name.partition(".")[0])


def imported(source: str) -> set[str]:
    """Which of its own modules a module of the package imports, at whatever depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports inside the package are written in full"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("mha_book.") for name in names if name.startswith("mha_book.")}


def resolved(name: str) -> str:
    """The module that an import names, be it a module or something inside one."""
    parts = name.split(".")
    found = [".".join(parts[:n]) for n in (2, 1) if ".".join(parts[:n]) in NAMES]
    return found[0] if found else name


def may_import(importer: str, module: str) -> bool:
    """Whether the order of ``book/modules.yml`` allows it.

    A folder's ``__init__`` hands on what its files define, and a file of a folder that lists none
    (exercises, storage) may import its ``__init__``.
    """
    own, other = entry(importer), entry(module)
    if own.name == other.name:
        if not own.files or importer == own.name:
            return True
        return NAMES.index(module) < NAMES.index(importer)
    if own.alone:
        return other.name == "_checks"
    return other.alone or ENTRIES.index(other) < ENTRIES.index(own)


def test_the_list_has_every_module_once() -> None:
    dotted_names = {dotted(path) for path in PATHS}  # an entry need not list its folder's files
    assert {name for name in dotted_names if entry(name).files or "." not in name} == {*NAMES}
    assert len(NAMES) == len(set(NAMES))
    assert len(ENTRIES) <= 17


@pytest.mark.parametrize("path", PATHS, ids=dotted)
def test_imports_from_above_alone(path: Path) -> None:
    own = dotted(path)
    found = {resolved(name) for name in imported(path.read_text(encoding="utf-8"))}
    # `mha_book.attention.x` runs the folder's `__init__` too, which hands on what is below.
    wrong = {name for name in found if not may_import(own, name)}
    assert wrong == set(), f"{own} may not import {', '.join(sorted(wrong))}"


def test_readme_has_the_table_of_the_list() -> None:
    readme = (SOURCE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert readme == modules.with_table(readme, ENTRIES)
    assert modules.readme_table(ENTRIES) in readme


def test_import_needs_the_declared_dependencies_alone_and_nothing_heavy() -> None:
    # Everything that `import mha_book` adds to what jax, numpy and jaxtyping bring.
    code = (
        "import sys, jax, jax.numpy, jax.nn, numpy, jaxtyping\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import mha_book\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "extra = after - before - set(sys.stdlib_module_names) - {'mha_book'}\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not extra and not heavy, (extra, heavy)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
