"""The first cell of a notebook sets up a bare Colab runtime, and does nothing elsewhere."""

import ast
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest

from tests.book.extensions import tool
from tests.test_newcomer import copy_to

TOOL = tool("refresh")
ADDRESS = "https://github.com/anna/heads"
# What the kernel of Colab offers to a cell, as far as the cell asks for it.
KERNEL = """
class Kernel:
    def do_shutdown(self, restart):
        print(f"the session starts anew: {restart}")
class Shell:
    kernel = Kernel()
def get_ipython():
    return Shell()
"""


def notebook() -> nbformat.NotebookNode:
    new = nbformat.v4
    code = [new.new_code_cell(f"print({n})", id=f"c{n}", execution_count=n) for n in (1, 2)]
    title, text = (new.new_markdown_cell(text, id=text) for text in ("title", "text"))
    return new.new_notebook(cells=[title, code[0], text, code[1]])


def test_the_cell_stands_before_the_others_and_stands_once():
    once = TOOL.text_of(TOOL.normalise(notebook()))
    found = nbformat.reads(once, as_version=4)
    assert [cell.id for cell in found.cells] == ["title", "colab", "c1", "text", "c2"]
    counts = [cell.execution_count for cell in found.cells if cell.cell_type == "code"]
    assert counts == [1, 2, 3]
    assert found.cells[1].metadata.tags == ["remove-cell"], "no page shows it"
    assert TOOL.text_of(TOOL.normalise(found)) == once
    TOOL.put_colab_cell(found, ADDRESS)
    assert f'repository = "{ADDRESS}"' in found.cells[1].source
    assert len(found.cells) == 5


def run(python: str, folder: Path, source: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run source as a process of its own, with a home of its own."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    return subprocess.run(
        [python, "-c", KERNEL + source], text=True, capture_output=True, check=False, cwd=folder,
        env={**kept, "HOME": str(folder), "JAX_PLATFORMS": "cpu", **environ},
    )  # fmt: skip


def test_elsewhere_the_cell_does_nothing(tmp_path):
    for address in ("", ADDRESS):
        done = run(sys.executable, tmp_path, TOOL.COLAB.format(repository=address))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
    imported = [
        node for node in ast.parse(TOOL.COLAB.format(repository="")).body if "Import" in str(node)
    ]
    assert {name.name for node in imported for name in node.names} <= sys.stdlib_module_names


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A repository with the working tree's package, as a public copy would have it."""
    folder = tmp_path_factory.mktemp("public") / "heads"
    copy_to(folder)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.needs_models
def test_a_runtime_without_the_book_runs_it_afterwards(tmp_path, copy):
    """The runtime brings other packages, as Colab does, but not the book's."""
    home = tmp_path / "home"
    home.mkdir()
    venv.create(home / "venv", with_pip=True)
    python = home / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    brought = home / "venv" / "lib" / version / "site-packages" / "brought.pth"
    brought.write_text(sysconfig.get_path("purelib"))  # links of this folder are not followed
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    colab = {"COLAB_RELEASE_TAG": "release", "PATH": path}
    assert run(str(python), home, "import mha_book", **colab).returncode != 0

    cell = TOOL.COLAB.format(repository=f"file://{copy}")
    done = run(str(python), home, cell, **colab)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "the session starts anew: True"

    then = """
import mha_book
from mha_book.models.minilm import encode, load_minilm, token_strings, tokenize
print(mha_book.__file__)
print(os.getcwd())
"""
    done = run(str(python), home, cell + then, **colab)
    assert done.returncode == 0, done.stderr
    there = home / "mha-book"
    assert done.stdout.splitlines() == [
        str(there / "src" / "mha_book" / "__init__.py"), str(there / "book"),
    ]  # fmt: skip
