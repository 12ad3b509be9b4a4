"""Peak memory of one call, each measured in a fresh process.

The process prepares its inputs and compiles, notes what it holds (the baseline), runs once
and notes the peak.  On Linux the kernel's high-water mark is set back before the run, so that
compilation does not hide it; elsewhere the mark cannot be set back and the increase is a lower
bound.  On an accelerator the allocator's own counters are read.

    python3 benchmarks/memory.py memory:fill '{"mib": 200}'
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

__all__ = ["fill", "peak_memory"]

HERE = Path(__file__).resolve().parent


def fill(mib: int) -> Callable[[], Any]:
    """A target of known size: writes to every page of `mib` MiB."""
    return lambda: np.full(mib * 2**20, 1, np.uint8)


def _status(field: str) -> int | None:
    """A field of /proc/self/status in bytes, None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _reset_peak() -> bool:
    """Sets the kernel's high-water mark back to what is held now; False where it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    peak, held = _status("VmHWM"), _status("VmRSS")
    return peak is not None and held is not None and peak - held < 2**24


def _resource_peak() -> int:
    """The peak resident size in bytes by getrusage (KiB on Linux, bytes on macOS)."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _host_usage(run: Callable[[], Any]) -> tuple[str, int, int]:
    """Method, baseline and peak in bytes of the resident memory of this process."""
    if _reset_peak():
        method, baseline = "VmHWM, reset before the run", _status("VmRSS") or 0
        jax.block_until_ready(run())
        return method, baseline, _status("VmHWM") or 0
    baseline = _resource_peak()
    jax.block_until_ready(run())
    return "ru_maxrss, not reset: a lower bound", baseline, _resource_peak()


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
        "method": method,
        "baseline_bytes": baseline,
        "peak_bytes": peak,
        "increase_bytes": max(0, peak - baseline),
    }


def peak_memory(
    target: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = 600.0
) -> dict[str, Any]:
    """The memory that one call takes above what its prepared process holds.

    Args:
        target: "module:function", found beside this file; called with the arguments it
            prepares the work and returns the function to run.
        arguments: keyword arguments of the target, as JSON has them.
        timeout: seconds.

    Returns:
        `method`, `baseline_bytes`, `peak_bytes`, `increase_bytes`.

    Raises:
        RuntimeError: when the process fails; the message holds the end of its stderr.
    """
    command = [sys.executable, str(HERE / "memory.py"), target, json.dumps(dict(arguments or {}))]
    paths = [*(path for path in sys.path if path), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{target}: the measuring process failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures one target in this process and prints the result as JSON."""
    parser = argparse.ArgumentParser(description="Peak memory of one call, in this process.")
    parser.add_argument("target", help="module:function that prepares and returns the call")
    parser.add_argument("arguments", nargs="?", default="{}", help="its keyword arguments, JSON")
    options = parser.parse_args()
    print(json.dumps(_measure(options.target, json.loads(options.arguments))))


if __name__ == "__main__":
    main()
