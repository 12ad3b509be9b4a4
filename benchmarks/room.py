"""Whether a computation fits: the bytes that XLA plans for it against the memory that is free."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

__all__ = ["check_room", "free_bytes", "planned_bytes"]

SHARE = 0.9  # of the free memory; the rest is for what the plan does not hold


def free_bytes() -> int | None:
    """What the device has free, in bytes; None where the system does not tell."""
    device = jax.devices()[0]
    held = device.memory_stats() if device.platform != "cpu" else None
    if held and "bytes_limit" in held:
        return held["bytes_limit"] - held["bytes_in_use"]
    if device.platform != "cpu" or not Path("/proc/meminfo").exists():
        return None
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def planned_bytes(function: Any, arguments: Sequence[Any]) -> int | None:
    """Temporaries and outputs of a jitted function as XLA plans them; None where it does not say.

    Example:
        >>> double = jax.jit(lambda x: x + x)
        >>> planned_bytes(double, [jax.numpy.ones((4, 8), "float32")])
        128
    """
    plan = function.lower(*arguments).compile().memory_analysis()
    return None if plan is None else plan.temp_size_in_bytes + plan.output_size_in_bytes


def check_room(function: Any, arguments: Sequence[Any]) -> None:
    """Nothing where the function fits.

    Raises:
        NotImplementedError: with what it needs and what is free.
    """
    needed, free = planned_bytes(function, arguments), free_bytes()
    if needed is not None and free is not None and needed > SHARE * free:
        raise NotImplementedError(
            f"needs {needed / 2**30:.1f} GiB beside its inputs; {free / 2**30:.1f} GiB are free"
        )
