"""What a program becomes when it is compiled for an accelerator that is not here.

libtpu, XLA's compiler for TPUs, compiles on any Linux machine: ``make accelerators-env`` installs
it.  So do the parts of JAX for NVIDIA's GPUs in ``requirements/accelerators-gpu.txt``, told the
facts of a device.  Such a program cannot be run; its kernels, its collectives and what it holds on
each chip are known.  Nothing here says how long it would take.

    compiled = compile_for(attend, *[((8, 2048, 128), "bfloat16")] * 3, target="v6e")
    memory(compiled).temporaries, kernels(compiled)
"""

import functools
import hashlib
import importlib.util
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mha_book.attention.platform import target_platform

TARGETS = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
"""The generations of TPUs, with the smallest slice of each; ``v5e:16x16`` names 256 chips."""

GPUS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("gpus.json").read_text())
"""What XLA asks about NVIDIA's GPUs: H100 (SXM, 80 GB) and B200.

The rates of their units, which XLA weighs fusions by, are not among them.

References:
    ``xla/backends/gpu/target_config/specs`` of openxla/xla.
"""
CUDNN = (9, 10)  # the version that a GPU's machine is said to have

# Read when libtpu is loaded: there is no TPU to ask what it is, and no other process to wait for.
SETTINGS = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip


class Memory(NamedTuple):
    """What a compiled program holds on each chip, in bytes."""

    arguments: int  # of the operands
    outputs: int  # of the results
    temporaries: int  # of all that lies between
    aliased: int  # of outputs that lie where arguments did


def missing(target: str = "v6e") -> str | None:
    """Why nothing can be compiled for a target here, or None."""
    if target not in GPUS:
        absent = importlib.util.find_spec("libtpu") is None
        return "no libtpu: make accelerators-env" if absent else None
    names = ("jax_cuda13_plugin", "nvidia", "nvidia.cudnn")
    for name in names:  # the parent first: looking for a child imports it
        if importlib.util.find_spec(name) is None:
            return f"no {name}: pip install --no-deps -r requirements/accelerators-gpu.txt"
    return None


def description(target: str) -> str:
    """Return what XLA is told of a target: the name of a slice, or the facts of a GPU."""
    if target not in GPUS:
        return TARGETS.get(target, target)
    facts = dict(GPUS[target])
    major, minor = facts.pop("compute_capability")
    generation = f"major: {major} minor: {minor} feature_extension: ACCELERATED_FEATURES"
    lines = "".join(f"  {name}: {value}\n" for name, value in facts.items())
    return (
        f"gpu_device_info {{\n{lines}  cuda_compute_capability {{ {generation} }}\n}}\n"
        'platform_name: "CUDA"\n'
        f"dnn_version_info {{ major: {CUDNN[0]} minor: {CUDNN[1]} }}\n"
    )


@functools.cache
def topology(name: str) -> Any:
    """Return the chips of a target, ``"v6e"``, or of a whole slice, ``"v5e:16x16"``."""
    if name in GPUS:
        return topologies.get_topology_desc(
            f"{name}:1", platform="cuda", target_config=description(name), topology="1x1x1"
        )
    for setting, value in SETTINGS.items():
        os.environ.setdefault(setting, value)
    return topologies.get_topology_desc(TARGETS.get(name, name), platform="tpu")


def mesh(target: str, axes: Mapping[str, int]) -> Mesh:
    """Return a mesh over the first chips of a target, an axis of each name and size."""
    devices = np.array(topology(target).devices[: int(np.prod(list(axes.values())))])
    types = (AxisType.Auto,) * len(axes)
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes), axis_types=types)


def compile_for(function, *shapes, target="v6e", mesh=None, specs=None) -> Any:
    """Compile a function for a TPU or for a GPU."""
    if mesh is None:
        mesh = Mesh(np.array(topology(target).devices[:1]), ("chip",))
    specs = [PartitionSpec()] * len(shapes) if specs is None else specs

    def placed(shape: Any, spec: PartitionSpec) -> Any:
        sharding = NamedSharding(mesh, spec)

        def place(x: Any) -> Any:
            pair = x if is_pair(x) else (x.shape, x.dtype)
            return jax.ShapeDtypeStruct(*pair, sharding=sharding)

        return jax.tree.map(place, shape, is_leaf=is_pair)

    arguments = [placed(shape, spec) for shape, spec in zip(shapes, specs, strict=True)]
    platform = "cuda" if target in GPUS else "tpu"
    with target_platform(platform, GPUS.get(target, {}).get("compute_capability")):
        traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)).compile()


def shapes_of(tree: Any) -> Any:
    """The same tree with every pair of a shape and a dtype as JAX has it."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(*x) if is_pair(x) else x, tree, is_leaf=is_pair
    )


def is_pair(x: Any) -> bool:
    """Whether something is a shape and a dtype."""
    return isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], (str, np.dtype, type))


def memory(compiled: Any) -> Memory:
    """Return what a compiled program holds on each chip."""
    analysis = compiled.memory_analysis()
    return Memory(
        analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes,
        analysis.alias_size_in_bytes,
    )  # fmt: skip


def kernels(compiled: Any) -> dict[str, int]:
    """Count the kernels that a compiled program calls, by name: Mosaic's, and libraries'."""
    found: Counter[str] = Counter()
    for line in compiled.as_text().splitlines():
        target = re.search(r'custom_call_target="([^"]+)"', line)
        if target and (target[1] == "tpu_custom_call" or target[1].startswith("__cu")):
            name = re.search(r"%?([\w.\-]+?)(?:\.\d+)* = ", line)
            found[name[1] if name and target[1] == "tpu_custom_call" else target[1]] += 1
    return dict(found)


_NAME = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_COPY = re.compile(r"= (\w+\[[\d,]*\])\S* copy\(")


def copies(compiled: Any) -> dict[str, int]:
    """Count the copies of a compiled program outside of fusions, by shape.

    They mostly give another order in memory. Those that a TPU starts early, into its fast memory,
    are not among them.
    """
    text, found, inside = compiled.as_text(), Counter[str](), False
    fused = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text))
    for line in text.splitlines():
        if name := _NAME.match(line):
            inside = name[1] in fused
        if not inside and (copy := _COPY.search(line)):
            found[copy[1]] += 1
    return dict(found)


def digest(compiled: Any) -> str:
    """Return the sha256 of a compiled program's text without what names places in source files.

    The code of a kernel is part of the text and names them too: of a program that has one the
    digest holds for one checkout at one place.
    """
    text = re.sub(r",? *(?:metadata=\{[^{}]*\}|stack_frame_id=\d+)", "", compiled.as_text())
    start = text.find("\n%") if "\n%" in text else text.find("\nENTRY")
    return hashlib.sha256((text.split("\n", 1)[0] + text[start:]).encode()).hexdigest()
