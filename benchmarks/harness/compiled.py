"""What a program becomes when it is compiled for an accelerator that is not here.

libtpu, XLA's compiler for TPUs, compiles on any Linux machine: ``make accelerators-env`` installs
it.  Such a program cannot be run; its kernels, its collectives and what it holds on each chip are
known.  Nothing here says how long it would take.

    compiled = compile_for(attend, *[((8, 2048, 128), "bfloat16")] * 3, target="v6e")
    memory(compiled).temporaries, kernels(compiled)
"""

import functools
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

__all__ = [
    "TARGETS",
    "Memory",
    "collectives",
    "compile_for",
    "kernels",
    "loops",
    "memory",
    "mesh",
    "missing",
    "topology",
]

TARGETS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
"""The generations of TPUs, with the smallest slice of each; ``v5e:16x16`` names 256 chips."""

# Read when libtpu is loaded: there is no TPU to ask what it is, and no other process to wait for.
SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


class Memory(NamedTuple):
    """What a compiled program holds on each chip, in bytes.

    Args:
        arguments: of the operands.
        outputs: of the results.
        temporaries: of all that lies between.
        aliased: of outputs that lie where arguments did.
    """

    arguments: int
    outputs: int
    temporaries: int
    aliased: int


def missing() -> str | None:
    """Why nothing can be compiled for a TPU here, or None."""
    if importlib.util.find_spec("libtpu") is None:
        return "no libtpu: make accelerators-env"
    return None


@functools.cache
def topology(name: str) -> Any:
    """Return the chips of a target, ``"v6e"``, or of a whole slice, ``"v5e:16x16"``."""
    for setting, value in SETTINGS.items():
        os.environ.setdefault(setting, value)
    return topologies.get_topology_desc(TARGETS.get(name, name), platform="tpu")


def mesh(target: str, axes: Mapping[str, int], explicit: bool = False) -> Mesh:
    """Return a mesh over the first chips of a target, an axis of each name and size."""
    devices = np.array(topology(target).devices[: int(np.prod(list(axes.values())))])
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=(kind,) * len(axes))


def compile_for(
    function: Callable[..., Any],
    *shapes: Any,
    target: str = "v6e",
    mesh: Mesh | None = None,
    specs: Any = None,
) -> Any:
    """Compile a function for a TPU.

    Args:
        function: what to compile; it may be jitted.
        shapes: of its arguments: pytrees of ``jax.ShapeDtypeStruct``, of arrays, or of pairs of a
            shape and a dtype.
        target: one of :data:`TARGETS`, or a slice; ignored where a mesh is given.
        mesh: chips of :func:`mesh`; None for a single chip.
        specs: how each argument lies on the mesh, one ``PartitionSpec`` each; None for all whole.

    Returns:
        The compiled program, which no machine without that chip can run.
    """
    if mesh is None:
        mesh = Mesh(np.array(topology(target).devices[:1]), ("chip",))
    specs = [PartitionSpec()] * len(shapes) if specs is None else specs

    def placed(shape: Any, spec: PartitionSpec) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda x: (
                jax.ShapeDtypeStruct(*x, sharding=sharding)
                if _is_pair(x)
                else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
            ),
            shape,
            is_leaf=_is_pair,
        )

    arguments = [placed(shape, spec) for shape, spec in zip(shapes, specs, strict=True)]
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=("tpu",)).compile()


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], (str, np.dtype, type))


def memory(compiled: Any) -> Memory:
    """Return what a compiled program holds on each chip."""
    analysis = compiled.memory_analysis()
    return Memory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.temp_size_in_bytes,
        analysis.alias_size_in_bytes,
    )


def kernels(compiled: Any) -> dict[str, int]:
    """Count the kernels that a compiled program calls, by name: Mosaic's, and libraries'."""
    found: Counter[str] = Counter()
    for line in compiled.as_text().splitlines():
        target = re.search(r'custom_call_target="([^"]+)"', line)
        if target and (target[1] == "tpu_custom_call" or target[1].startswith("__cu")):
            name = re.search(r"%?([\w.\-]+?)(?:\.\d+)* = ", line)
            found[name[1] if name and target[1] == "tpu_custom_call" else target[1]] += 1
    return dict(found)


def loops(compiled: Any) -> int:
    """Count the loops of a compiled program."""
    return len(re.findall(r"\bwhile\(", compiled.as_text()))


def collectives(compiled: Any) -> dict[str, int]:
    """Count the collectives of a compiled program; one that is started and awaited counts once."""
    text = compiled.as_text()
    found = {name: len(re.findall(rf"\b{name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in found.items() if count}
