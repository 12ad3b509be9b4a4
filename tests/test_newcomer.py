"""The first commands of a newcomer, taken out of README.md and `.binder/`.

What installs by pip runs in a clean copy of the repository, with uv behind the same words. Colab's
cell and script run in ``tests/book/test_colab.py``.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")
POST_BUILD = ROOT / ".binder/postBuild"

WITH_UV = """
pip() { python -m pip "$@"; }
python() {
  if [ "${1-} ${2-}" = "-m pip" ]; then
    shift 2
    %s -m uv pip "${@/--no-cache-dir/--quiet}" --python "$(type -P python)"
  else
    command python "$@"
  fi
}
export -f pip python
"""


def block(line: str) -> list[str]:
    """The lines of the block of commands that has a line, without their comments."""
    texts = re.findall(r"^```\w*\n(.*?)^```$", README, re.M | re.S)
    found = ([each.partition(" #")[0].rstrip() for each in text.splitlines()] for text in texts)
    return next(lines for lines in found if line in lines)


def clean(**more: str) -> dict[str, str]:
    """The variables of a newcomer: none that brings packages or options in; no environment."""
    brought = re.compile(r"PYTHON.*|VIRTUAL_ENV.*|PYTEST.*|MAKE.*|MFLAGS|VENV|UV_.*|CI|MHA_BOOK_.*")
    kept = {name: value for name, value in os.environ.items() if not brought.fullmatch(name)}
    inside = {str(Path(sys.executable).parent), f"{sys.prefix}/bin"}
    path = [folder for folder in kept["PATH"].split(os.pathsep) if folder not in inside]
    base = Path(sys._base_executable).parent  # python3 of the version that runs this
    return {**kept, "PATH": os.pathsep.join([str(base), *path]), **more}


def copy_to(folder: Path) -> Path:
    """What a clone of the working tree would have."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def run(lines: list[str], folder: Path, before: str = "", **more: str) -> str:
    """What the lines say as one script, which ends at the first that fails."""
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", before + "\n".join(lines)], cwd=folder, text=True,
        capture_output=True, stdin=subprocess.DEVNULL, env=clean(**more), timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def test_binder_installs_as_by_hand() -> None:
    by_hand = [line.replace("--no-cache-dir ", "") for line in POST_BUILD.read_text().splitlines()]
    installs = [line for line in block("python3 -m venv .venv") if line.startswith("pip ")]
    assert [f"python -m {line}" for line in installs] == by_hand[-3:]


READY = """command python -c "
import json, pathlib
import jupyter_book, mha_book, nbval
from mha_book.models.text import load_speeches
print(pathlib.Path(mha_book.__file__).parents[2], len(load_speeches()) > 200)
" """


@pytest.mark.slow
@pytest.mark.needs_models
def test_by_hand(tmp_path: Path) -> None:
    """As Binder does it, too: its lines are the same."""
    folder = copy_to(tmp_path / "book")
    uv = WITH_UV % shlex.quote(sys.executable)
    said = run([*block("python3 -m venv .venv"), READY], folder, uv)
    assert f"{folder} True" in said
