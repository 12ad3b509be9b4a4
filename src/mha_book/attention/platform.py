"""The platform that a program is traced for: one, the one it runs on unless the caller names it."""

import contextlib
import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import jax

from mha_book._checks import check

__all__ = ["target_platform"]

PLATFORMS = ("cpu", "gpu", "tpu")
PORTABLE = "portable"
NAMES = {"cuda": "gpu", "rocm": "gpu"}  # in XLA's words

_target: Any = jax.make_user_context(None)  # a part of what JAX caches programs by


def target_platform(
    name: str, compute_capability: Sequence[int] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Trace for a platform other than the one that JAX runs on by default.

    :func:`~mha_book.attention.dispatch.attend` chooses one implementation for one platform. Within
    this context that is the platform named here, whatever this machine has: for a program that is
    lowered for another (``jax.jit(f).trace(...).lower(lowering_platforms=("tpu",))``, or
    ``jax.export``). A program for several platforms takes "portable": then the implementations that
    compile anywhere, the reference and blocks. Functions under ``jax.jit`` are traced once for each
    platform.

    Args:
        name: "cpu", "gpu" (or "cuda", "rocm"), "tpu", or "portable".
        compute_capability: of an NVIDIA GPU, for example ``(9, 0)``; None for this machine's.

    Example:
        >>> import jax.numpy as jnp
        >>> from mha_book import attend
        >>> x = jnp.ones((2, 1024, 8))
        >>> with target_platform("portable"):
        ...     exported = jax.export.export(jax.jit(attend), platforms=("cpu", "tpu"))(x, x, x)
        >>> exported.platforms
        ('cpu', 'tpu')
    """
    known = (*PLATFORMS, *NAMES, PORTABLE)
    check(isinstance(name, str) and name in known, "name", f"one of {', '.join(known)}", repr(name))
    given = compute_capability
    if given is not None:
        is_pair = isinstance(given, list | tuple) and [type(n) for n in given] == [int, int]
        check(is_pair, "compute_capability", "two integers such as (9, 0), or None", repr(given))
        given = tuple(given)  # JAX keeps programs by it
    context: contextlib.AbstractContextManager[None] = _target((NAMES.get(name, name), given))
    return context


def platform_of(*arrays: Any) -> tuple[str, tuple[int, ...] | None]:
    """Return the platform to trace for, and the compute capability of a GPU there.

    Arrays that have values lie on a platform.
    """
    if _target.value is not None:
        platform, capability = _target.value
    else:
        platform, capability = _platform_here(arrays), None
    if platform == "gpu" and capability is None:
        capability = compute_capability()
    return platform, capability


def _platform_here(arrays: Any) -> str:
    if arrays and not any(isinstance(x, jax.core.Tracer) for x in arrays):
        devices = getattr(arrays[0], "devices", None)
        if devices is not None:
            return str(next(iter(devices())).platform)
    default: Any = getattr(jax.config, "jax_default_device", None)
    if default is None:
        return jax.default_backend()
    name = default if isinstance(default, str) else default.platform
    return NAMES.get(name, name)


@functools.cache
def compute_capability() -> tuple[int, ...] | None:
    """Return the generation of this machine's NVIDIA GPU, or what is supposed of one elsewhere."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:  # JAX has no such backend here
        return (8, 0) if _has_cudnn() else None
    return tuple(int(number) for number in device.compute_capability.split("."))


def _has_cudnn() -> bool:
    """Whether JAX can trace cuDNN's attention: it asks for the library's version then."""
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    if not any(importlib.util.find_spec(name) for name in plugins):
        return False
    return bool(importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.cudnn"))
