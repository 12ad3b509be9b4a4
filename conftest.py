"""What pytest needs to know about the notebooks; the tests' own fixtures are in tests/."""

import gc
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import pytest
from ipykernel.kernelspec import get_kernel_dict

from tests import kernels

ROOT = Path(__file__).parent

# Most of the time of the tests is XLA's: compiled programs are kept, for the other workers, the
# notebooks' kernels and the next run. Set before JAX is imported; JAX keys them by version.
for name, value in {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / "_build" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}.items():
    os.environ.setdefault(name, value)

# For the tests alone, and notebooks that are not run as a reader's. A program in one piece, and
# XLA's older code for loops on a CPU, where there still is one, compile in half the time. And where
# a process has one core, XLA makes one thread: two cores of a TPU, interpreted, would wait for each
# other forever.
TESTS_ALONE: dict[str, str] = {}
flags = ["--xla_cpu_parallel_codegen_split_count=1"] * (version("jaxlib") < "0.13")
flags += ["--xla_cpu_use_fusion_emitters=false"] * (version("jaxlib") < "0.11")
TESTS_ALONE["XLA_FLAGS"] = " ".join(flags)
if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
    TESTS_ALONE["NPROC"] = "2"
for name, value in TESTS_ALONE.items():
    os.environ.setdefault(name, value)

gc.disable()  # until all is imported and collected


def pytest_collection_finish() -> None:
    """Leave what lives as long as the run out of every search for garbage."""
    gc.enable()
    gc.freeze()


# Compared in no cell: what the interpreter says on stderr (the stored notebooks have none,
# which tests/book/test_notebooks.py holds), and pictures (nbval itself leaves out image/png).
SKIP_COMPARE = (
    "stderr",
    "image/svg+xml",
    "application/papermill.record/image/png",
    "application/papermill.record/image/svg+xml",
)


def pytest_configure(config: pytest.Config) -> None:
    # nbval opens this path relative to the working directory.
    sanitise = config.getoption("nbval_sanitize_with", None)
    if sanitise and not Path(sanitise).is_absolute():
        config.option.nbval_sanitize_with = str(ROOT / sanitise)
    is_begun = kernels.ADDRESS in os.environ or sys.platform != "linux"  # by the first process
    if config.getoption("nbval", None) and not is_begun:
        kernels.start()


def pytest_itemcollected(item: pytest.Item) -> None:
    notebook = item.parent
    if type(item).__name__ == "IPyNbCell" and SKIP_COMPARE[0] not in notebook.skip_compare:
        notebook.skip_compare = (*notebook.skip_compare, *SKIP_COMPARE)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Compile without optimisation, which of a program that runs once is half the time.

    Not tests that say ``optimized``, and not the dear notebooks, which run as a reader's do. All
    kernels are forked where that is safe.
    """
    from tests.turns import DEAR

    with ExitStack() as stack:
        if type(item).__name__ != "IPyNbCell":
            import jax

            is_plain = item.get_closest_marker("optimized") is None
            jax.config.update("jax_disable_most_optimizations", is_plain)
        elif item.parent.kernel is None:  # which the first cell of a notebook starts
            environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
            if item.path.stem in DEAR:
                ours = {n for n, value in TESTS_ALONE.items() if os.environ.get(n) == value}
                environment = {n: value for n, value in os.environ.items() if n not in ours}
            stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
            if sys.platform == "linux":
                asking = [sys.executable, "-I", "-S", kernels.__file__, os.environ[kernels.ADDRESS]]
                kernel = {**get_kernel_dict(), "argv": [*asking, "{connection_file}"]}
                made = mock.patch("ipykernel.kernelspec.get_kernel_dict", return_value=kernel)
                stack.enter_context(made)
        return (yield)
