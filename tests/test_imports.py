"""What importing the package costs, and which module may import which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "mha_book"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
HEAVY = ("matplotlib", "optax", "safetensors", "tokenizers", "gguf", "networkx")

# A module imports from the rows above its own, and from no other. A package with what lies in
# it counts as one entry.
LAYERS = (
    ("_checks", "_dtypes"),
    ("heads", "masks", "notation", "rope", "softmax_vjp"),
    ("spans", "visibility"),
    ("blocks", "online_softmax"),
    ("block_mask",),
    ("blockwise_vjp",),
    ("attention", "blockwise", "jax_nn", "kernels"),
    ("attention_vjp", "cudnn"),
    ("manual",),
    ("decode",),
    ("request",),
    ("dispatch",),
    ("dropout", "layer_vjp", "layers", "parameters"),
    ("initializers",),
    ("multihead",),
    ("gradients", "grouped", "kv_cache", "latent"),
    ("cached_attention", "specialization"),
    ("models", "pruning"),
    ("checkpoints",),
    ("exercises", "tables", "training"),
)
# These import nothing of the package, and stand beside it.
ALONE = ("costs", "counting", "plotting")
# These import what stands alone, and nothing else.
BESIDE = {"plotting_heads": {"plotting"}}


def entry(path: Path) -> str:
    """The name under which the table has a source file."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def row(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


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
    return {name.split(".")[1] for name in names if name.startswith("mha_book.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_from_below_alone(path: Path) -> None:
    own = entry(path)
    found = imported(path.read_text(encoding="utf-8"))
    if own in ALONE:
        assert found == set()
        return
    if own in BESIDE:
        assert found == BESIDE[own]
        return
    assert any(own in names for names in LAYERS), f"{own} has no row in LAYERS"
    wrong = {name for name in found - {own} if name in ALONE or row(name) >= row(own)}
    assert wrong == set(), f"{own} may not import {', '.join(sorted(wrong))}"


def test_the_reader_of_imports_sees_every_form() -> None:
    source = (
        "import mha_book.heads\n"
        "from mha_book import masks\n"
        "def f():\n    from mha_book.models.minilm import load\n"
        "import numpy, mha_book_other\n"
    )
    assert imported(source) == {"heads", "masks", "models"}


def test_import_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, mha_book\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


def test_import_needs_the_declared_dependencies_alone() -> None:
    # Everything that `import mha_book` adds to what jax, numpy and jaxtyping bring.
    code = (
        "import sys, jax, jax.numpy, jax.nn, numpy, jaxtyping\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import mha_book\n"
        "after = {name.partition('.')[0] for name in sys.modules}\n"
        "extra = after - before - set(sys.stdlib_module_names) - {'mha_book'}\n"
        "assert not extra, extra\n"
    )
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
