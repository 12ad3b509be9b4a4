"""Try the book on newer packages than the lock has: `make canary GROUP=sphinx`.

    python book/_tools/canary.py GROUP [GROUP ...]

A group is ``jax`` (what ``import mha_book`` needs), an extra of pyproject.toml, ``sphinx``, or
``everything``. Each starts from the lock, in an environment of its own (.venv-canary), and takes
the newest version of its own packages alone, so that what breaks has a name; ``everything`` takes
the newest of all that they depend on. Upper bounds of pyproject.toml hold, except in ``sphinx``:
jupyter-book 1 asks for Sphinx 7, and the day will come when that no longer installs. What changed
since the lock is printed, then the book is built, warnings being errors, or the tests run.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-canary"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
SPHINX = ("sphinx", "sphinx-book-theme", "pydata-sphinx-theme", "myst-parser", "myst-nb",
          "sphinxcontrib-bibtex")  # fmt: skip
BUILT = ("book", "sphinx")  # these groups build the book; the others run the tests


def groups() -> dict[str, list[str]]:
    """Return what each group asks for, as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    extras = project["optional-dependencies"]
    found = {"jax": project["dependencies"], **extras, "sphinx": [*SPHINX]}
    everything = [line for lines in (project["dependencies"], *extras.values()) for line in lines]
    return {**found, "everything": everything}


def command(group: str) -> list[str]:
    """Return the arguments of ``uv pip install`` that take the newest packages of a group."""
    asked = groups()[group]
    if group == "everything":
        return ["--upgrade", *asked]
    names = [re.split(r"[<>=!;\[ ]", line)[0] for line in asked]
    return [*(word for name in names for word in ("--upgrade-package", name)), *asked]


def checks(group: str) -> list[list[str]]:
    """Return the commands that have to succeed."""
    build = ["jupyter-book", "build", ".", "-W", "--keep-going", "--path-output", "_build/canary"]
    test = ["pytest", "--nbval"]
    return [build, test] if group == "everything" else [build] if group in BUILT else [test]


def versions() -> dict[str, str]:
    """Return what is installed, by name."""
    freeze = [str(BIN / "python"), "-m", "uv", "pip", "freeze", "--python", str(BIN / "python")]
    listed = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout
    return dict(line.split("==") for line in listed.splitlines() if "==" in line)


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line for each package that is not as it was."""
    names = sorted(name for name in before | after if before.get(name) != after.get(name))
    return [f"  {name} {before.get(name, '-')} -> {after.get(name, '-')}" for name in names]


def attempt(group: str) -> bool:
    """Install the newest of a group, say what changed, and run its checks."""
    print(f"== {group}", flush=True)
    lock = [sys.executable, "book/_tools/environment.py", "--venv", VENV.name, "--force"]
    subprocess.run(lock, cwd=ROOT, check=True)
    before = versions()
    install = [str(BIN / "python"), "-m", "uv", "pip", "install", "--quiet"]
    install += ["--python", str(BIN / "python"), *command(group)]
    if subprocess.run(install, cwd=ROOT, check=False).returncode:
        print(f"{group}: does not install")
        return False
    print("\n".join(changes(before, versions()) or ["  the lock has the newest"]), flush=True)
    for check in checks(group):
        done = subprocess.run([str(BIN / check[0]), *check[1:]], cwd=ROOT, check=False)
        if done.returncode:
            print(f"{group}: `{' '.join(check)}` ended with status {done.returncode}")
            return False
    print(f"{group}: fine", flush=True)
    return True


def main() -> int:
    """Try the groups that are named."""
    parser = argparse.ArgumentParser(description="Try the book on newer packages.")
    parser.add_argument("groups", nargs="+", choices=groups(), metavar="GROUP",
                        help=", ".join(groups()))  # fmt: skip
    fine = [attempt(group) for group in parser.parse_args().groups]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
