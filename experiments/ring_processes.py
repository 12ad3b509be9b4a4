"""Ring attention over several processes on one machine: who holds what, and what is sent.

    python -m experiments.ring_processes --processes 4

starts as many processes, each a device of one ring, attends and differentiates, and holds each
process's part to what one process computes alone. Gloo carries what they send to each other. One
that has not been heard of for ten seconds is given up by the others, which end then.
"""

import argparse
import os
import socket
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed
from jax.sharding import NamedSharding

from mha_book._checks import check, check_size
from mha_book.attention.dispatch import attend
from mha_book.sharding import (
    MeshAxes,
    MeshSizes,
    balance,
    make_placement,
    plan_cost,
    ring_attention,
)
from mha_book.sharding.mesh import operand_specs
from mha_book.sharding.placement import PLACEMENTS

HEADS, KEY_HEADS, WIDTH, TOLERANCE = 4, 2, 8, 1e-5


def take_part(number: int, processes: int, length: int, name: str) -> None:
    mesh = jax.make_mesh((processes,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    axes = MeshAxes(sequence="ring")
    placement = make_placement(name, length, processes)
    order = placement.positions.reshape(-1)
    rng = np.random.default_rng(2017)
    sharding = NamedSharding(mesh, operand_specs(3, axes))
    whole = [
        rng.standard_normal((heads, length, WIDTH)).astype(np.float32)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    ]

    def place(x: Any) -> Any:
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[:, order][index])

    placed = [place(x) for x in whole]
    plan = plan_cost(
        batch=1, num_heads=HEADS, num_kv_heads=KEY_HEADS, length=length, head_dim=WIDTH,
        devices=MeshSizes(sequence=processes), placement=placement, upper=0, bytes_per_element=4,
    )  # fmt: skip
    pairs = balance(placement, upper=0)
    said = f"{placement.describe(number)}, {pairs.by_device[number]} of {pairs.total} pairs"
    print(f"process {number}: {said}, sends {plan.sent_bytes} bytes", flush=True)

    def both(attention: Any) -> Any:
        def call(query: Any, key: Any, value: Any, d_output: Any) -> Any:
            output, pull = jax.vjp(attention, query, key, value)
            return output, *pull(d_output)

        return jax.jit(call)

    def over(*x: Any) -> Any:
        return ring_attention(*x, mesh=mesh, axes=axes, placement=placement, is_causal=True)

    ring = both(over).lower(*placed).compile()
    # Gloo waits half a minute for another process, and compiling may take one longer than that.
    distributed.global_state.client.wait_at_barrier("compiled", 120_000)
    found = ring(*placed)
    alone = both(lambda *x: attend(*x, is_causal=True))(*map(jnp.asarray, whole))
    own = placement.positions[number]
    worst = max(
        float(np.abs(np.asarray(mine.addressable_shards[0].data) - np.asarray(x)[:, own]).max())
        for mine, x in zip(found, alone, strict=True)
    )
    print(f"process {number}: output and gradients differ by at most {worst:.0e}", flush=True)
    check(worst < TOLERANCE, "ring", f"what one process computes, to {TOLERANCE:.0e}", worst)


def start(processes: int, *options: str) -> int:
    """Start this module as several processes, and wait for their end; 1 if one failed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, "-m", "experiments.ring_processes", "--processes", f"{processes}"]
    running = [
        subprocess.Popen([*command, *options, "--number", str(n), "--at", address], env=env)
        for n in range(processes)
    ]
    failed = [n for n, process in enumerate(running) if process.wait()]
    print(f"failed: {failed}" if failed else f"{processes} processes agree with one", flush=True)
    return int(bool(failed))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the top of this module."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ring_processes")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="positions of the sequence")
    parser.add_argument("--placement", choices=PLACEMENTS, default="zigzag")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    check_size(given.processes, "processes")
    make_placement(given.placement, given.length, given.processes)  # before anything starts
    if given.number is None:
        shared = "--length", str(given.length), "--placement", given.placement
        return start(given.processes, *shared)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        given.at, given.processes, given.number, heartbeat_timeout_seconds=10
    )
    take_part(given.number, given.processes, given.length, given.placement)
    jax.distributed.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
