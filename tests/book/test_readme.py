"""README does what it says: its code runs as printed, its commands, files and links exist."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
PYTHON = [
    (code, BLOCKS[number + 1])
    for number, (language, code) in enumerate(BLOCKS)
    if language == "python"
]


@pytest.mark.parametrize("code, following", PYTHON, ids=range(len(PYTHON)))
def test_code_prints_what_follows(code: str, following: tuple[str, str], tmp_path: Path) -> None:
    assert following[0] == "text", "a block of code is followed by what it prints"
    script = tmp_path / "readme.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(command, text=True, capture_output=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == following[1]


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_commands_exist(text: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, flags=re.MULTILINE))
    assert named
    assert named <= targets


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_files_exist(text: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", text)
    local = {link for link in links if not link.startswith("https://")}
    local |= set(re.findall(r"(?<![\w/-])(?:book|tests|benchmarks|\.binder)/[\w./-]*", text))
    local |= {path.replace("\\", "/") for path in re.findall(r"book\\[\w\\.]+", text)}
    local = {path.rstrip(".") for path in local if "github" not in path}
    missing = {path for path in local if not (ROOT / path).exists()}
    assert missing == set()


def test_version_is_one() -> None:
    import mha_book

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert mha_book.__version__ == project["version"]
