"""How much memory a device of a ring needs at most, measured in processes.

One, two, four and eight processes, each a device of one ring, attend over the same sequence. The
program is compiled first; then each process notes what memory it holds, makes its own part of the
queries, keys and values, attends once, and notes the most that it held, by Linux's own mark (VmHWM,
set back before). Their difference is what attention over the ring took.
"""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

from benchmarks.harness.fields import fields
from benchmarks.harness.memory import proc_bytes
from experiments.processes import joined, launch_processes, meet
from experiments.shared import ROOT, Run, experiment
from mha_book.sharding import MeshAxes, make_placement, ring_attention
from mha_book.sharding.mesh import operand_specs

SEEDS = "inputs: default_rng(process)"
MARK = Path("/proc/self/clear_refs")
held = partial(proc_bytes, "self/status")  # bytes of this process: VmRSS now, VmHWM at most

Sizes = fields(processes=(1, 2, 4, 8), length=16384, heads=8, width=64, rounds=2)
QUICK = Sizes((1, 2), length=64, heads=2, width=4, rounds=1)


def take_part(number: int, sizes: Sizes) -> int:
    """Be one device of the ring; return by how many bytes its memory rose."""
    count = jax.process_count()
    mesh = jax.make_mesh((count,), ("ring",), axis_types=(AxisType.Auto,))
    axes, placement = MeshAxes(sequence="ring"), make_placement("zigzag", sizes.length, count)
    sharding = NamedSharding(mesh, operand_specs(3, axes))
    shape = (sizes.heads, sizes.length, sizes.width)

    def attend(*x: Any) -> Any:
        return ring_attention(*x, mesh=mesh, axes=axes, placement=placement, is_causal=True)

    like = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
    compiled = jax.jit(attend).lower(like, like, like).compile()
    meet("compiled")
    before = held("VmRSS")
    MARK.write_text("5")
    rng = np.random.default_rng(number)
    operands = []
    for _ in range(3):
        part = rng.standard_normal((shape[0], shape[1] // count, shape[2]), np.float32)
        operands.append(
            jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(part)])
        )
        del part
    jax.block_until_ready(compiled(*operands))
    return held("VmHWM") - before


def measure(processes: int, sizes: Sizes) -> list[int]:
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    # What is freed goes back to the operating system, so that nothing is taken from a store of it.
    environment |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536")
    with tempfile.TemporaryDirectory() as folder:
        code = launch_processes(
            "experiments.ring_memory", processes, ["--sizes", json.dumps(sizes), "--to", folder],
            timeout=600.0, done="measured", environment=environment,
        )  # fmt: skip
        assert code == 0
        return [int((Path(folder) / str(n)).read_text()) for n in range(processes)]


def _process(given: list[str]) -> None:
    names = ("--number", "--processes", "--port", "--sizes", "--to")
    number, processes, port, sizes, folder = (given[given.index(name) + 1] for name in names)
    with joined(int(number), int(processes), int(port)):
        rise = take_part(int(number), Sizes(*json.loads(sizes)))
        (Path(folder) / number).write_text(str(rise))
        print(f"process {number}: {rise / 2**20:.0f} MiB", flush=True)


if __name__ == "__main__" and "--number" in sys.argv:
    _process(sys.argv[1:])
    sys.exit()


@experiment("ring-memory.json", Sizes(), QUICK, seeds=SEEDS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    found: dict[str, list[list[int]]] = {str(n): [] for n in sizes.processes}
    for _ in range(sizes.rounds):
        for n in sizes.processes:
            found[str(n)].append(measure(n, sizes))
    return {"memory": found}
