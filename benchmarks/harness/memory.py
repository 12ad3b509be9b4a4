"""Whether a computation fits into memory, and the peak memory of one call in a fresh process.

It fits if the bytes that XLA plans for it are free.  The measuring process prepares its inputs and
compiles, notes what it holds (the baseline), runs once and notes the peak.  On Linux the kernel's
high-water mark is set back before the run, so that compilation does not hide it; elsewhere the
mark cannot be set back and the increase is a lower bound.  On an accelerator the allocator's own
counters are read.

    cd benchmarks; python3 -m harness.memory harness.memory:fill '{"mib": 200}'
"""

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

BENCHMARKS = Path(__file__).resolve().parents[1]
LARGE = 2**30  # from so many bytes of float32 scores on, it is asked first whether all of it fits
SHARE = 0.9  # of the free memory; the rest is for what the plan does not hold


def proc_bytes(file: str, field: str) -> int | None:
    """A field of a file in /proc in bytes, None where there is no such file."""
    try:
        lines = (Path("/proc") / file).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def free_bytes() -> int | None:
    """What the device has free, in bytes; None where the system does not tell."""
    device = jax.devices()[0]
    held = device.memory_stats() if device.platform != "cpu" else None
    if held and "bytes_limit" in held:
        return held["bytes_limit"] - held["bytes_in_use"]
    return proc_bytes("meminfo", "MemAvailable") if device.platform == "cpu" else None


def check_room(function: Any, arguments: Sequence[Any], *, scores: int) -> None:
    """Nothing where the function fits; whether it does is asked where it has many scores."""
    if 4 * scores < LARGE:
        return
    plan, free = function.lower(*arguments).compile().memory_analysis(), free_bytes()
    if plan is None or free is None:
        return
    if (needed := plan.temp_size_in_bytes + plan.output_size_in_bytes) > SHARE * free:
        raise NotImplementedError(
            f"needs {needed / 2**30:.1f} GiB beside its inputs; {free / 2**30:.1f} GiB are free"
        )


def compiled(run: Any) -> Callable[[], Any]:
    """The same call, compiled beforehand where it is a jitted function with its arguments."""
    if not hasattr(getattr(run, "func", None), "lower"):
        return run
    return functools.partial(run.func.lower(*run.args).compile(), *run.args)


def fill(mib: int) -> Callable[[], Any]:
    """A target of known size: writes to every page of `mib` MiB."""
    return lambda: np.full(mib * 2**20, 1, np.uint8)


def _host_usage(run: Callable[[], Any]) -> tuple[str, int, int]:
    """Method, baseline and peak in bytes of the resident memory of this process."""
    import resource  # not on Windows

    def peak() -> int:
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return size if sys.platform == "darwin" else size * 1024

    try:
        Path("/proc/self/clear_refs").write_text("5")
        method, baseline = "VmHWM, reset before the run", proc_bytes("self/status", "VmRSS") or 0
    except OSError:
        method, baseline = "ru_maxrss, not reset: a lower bound", peak()
    jax.block_until_ready(run())
    return method, baseline, proc_bytes("self/status", "VmHWM") or peak()


def _device_usage(run: Callable[[], Any]) -> tuple[str, int, int] | None:
    """The same from the accelerator's allocator, None where it keeps no count."""
    device = jax.devices()[0]
    held = device.memory_stats() if device.platform != "cpu" else None
    if not held or "peak_bytes_in_use" not in held:
        return None
    jax.block_until_ready(run())
    return "peak_bytes_in_use", held["bytes_in_use"], device.memory_stats()["peak_bytes_in_use"]


def _measure(target: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares the target in this process, runs it once and reports the memory."""
    module, _, function = target.partition(":")
    run = getattr(importlib.import_module(module), function)(**arguments)
    method, baseline, peak = _device_usage(run) or _host_usage(run)
    return {
        "method": method, "baseline_bytes": baseline, "peak_bytes": peak,
        "increase_bytes": max(0, peak - baseline),
    }  # fmt: skip


def peak_memory(target, arguments=None) -> dict[str, Any]:
    """The memory that one call takes above what its prepared process holds."""
    command = [sys.executable, "-m", "harness.memory", target, json.dumps(dict(arguments or {}))]
    paths = [str(BENCHMARKS), *sys.path, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{target}: the measuring process failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], json.loads(sys.argv[2]))))
