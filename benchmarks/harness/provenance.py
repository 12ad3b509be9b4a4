"""Where a measurement comes from: device, versions, commit, date, command, environment."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from mha_book.storage import NOT_RECORDED

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("jax", "jaxlib", "numpy", "torch")
SEEDS = "inputs: numpy.random.default_rng(length of the case)"
ENVIRONMENT_PREFIXES = ("XLA_", "JAX_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_VISIBLE", "NVIDIA_TF32")


def available_cores() -> int:
    """How many cores this process may use (its affinity, not what the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's name, as the operating system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    """The machine's memory in GiB, None where the system does not tell."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def load_average() -> list[float] | None:
    """The system's load over 1, 5 and 15 minutes, None where it keeps none."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def package_versions(names: tuple[str, ...] | None = None) -> dict[str, str | None]:
    """The version of each package, of all `PACKAGES` by default; None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES if names is None else names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _git(*arguments: str) -> str | None:
    """The output of a git command in the repository, None where there is none."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def git_state() -> dict[str, Any]:
    """The commit, and whether tracked files other than results differ from it.

    Where the files were copied without their history, both are read from the variable
    BENCHMARK_COMMIT, the output of `git describe --always --abbrev=40 --exclude '*' --dirty`
    where they came from.  Without it neither is recorded.
    """
    commit = _git("rev-parse", "HEAD")
    if commit is None and (told := os.environ.get("BENCHMARK_COMMIT")):
        return {"commit": told.removesuffix("-dirty"), "dirty": told.endswith("-dirty")}
    tracked = ("status", "--porcelain", "--untracked-files=no", "--", ".")
    changes = _git(*tracked, ":!benchmarks/results", ":!book/data")
    if commit is None:
        return {"commit": NOT_RECORDED, "dirty": NOT_RECORDED}
    return {"commit": commit, "dirty": bool(changes)}


def record(seeds: Any = SEEDS, inputs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """All that tells where and how a measurement was made, as `storage.PROVENANCE` has it."""
    device = jax.devices()[0]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "git": git_state(),
        "platform": device.platform,
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "cpu_model": cpu_model(),
        "cores": available_cores(),
        "memory_gib": _memory_gib(),
        "load_average": load_average(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": package_versions(),
        "seeds": seeds,
        "inputs": dict(inputs or {}),
        "environment": {
            name: os.environ[name]
            for name in sorted(os.environ)
            if name.startswith(ENVIRONMENT_PREFIXES)
            and name != "JAX_COMPILATION_CACHE_DIR"  # a path of this machine, and nothing else
        },
    }
