r"""Several processes on one machine, each a device of one ring: who holds what, and what is sent.

    python -m mha_book.sharding.demo --processes 4

starts as many processes, joins them by :func:`jax.distributed.initialize` (Gloo carries what they
send on a CPU), attends over the ring and its gradient, and holds each process's part to what one
process computes alone. The program is the one of :mod:`~mha_book.sharding.ring`: that its devices
lie in several processes is for :mod:`jax` to know.

A process that dies leaves the others waiting for what it was to send. The one that started them
sees it, says which it was, and ends the others: within :data:`GRACE` seconds. ``--fail 2`` shows
it. Should that one end itself, so do they; and JAX gives up a process that has not been heard of
for :data:`HEARTBEAT` seconds.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from mha_book._checks import check, check_size
from mha_book.attention.dispatch import attend
from mha_book.sharding.mesh import MeshAxes, MeshSizes, operand_specs
from mha_book.sharding.placement import PLACEMENTS, Placement, balance, make_placement
from mha_book.sharding.plan import plan_cost
from mha_book.sharding.ring import ring_attention

__all__ = ["GRACE", "HEARTBEAT", "describe", "launch"]

GRACE = 5
"""Seconds that the other processes have after one has died, before they are ended."""

HEARTBEAT = 10
"""Seconds without a sign of life after which a process is given up by the others."""

HEADS, KEY_HEADS, WIDTH, TOLERANCE = 4, 2, 8, 1e-5


def describe(placement: Placement, device: int) -> str:
    """Return in words which positions a device holds, and how many pairs it computes.

    Args:
        placement: the placement.
        device: the number of the device.

    Returns:
        One line.

    Example:
        >>> describe(make_placement("zigzag", 16, 2), 0)
        'positions 0-3 12-15, 68 of 136 pairs'
    """
    run, stride = placement.run_length, placement.stride
    ends = [(start, start + stride * (run - 1)) for start in placement.starts[device]]
    by = f" by {stride}" if stride > 1 else ""
    held = " ".join(f"{first}-{last}{by}" for first, last in ends)
    pairs = balance(placement, upper=0)
    return f"positions {held}, {pairs.by_device[device]} of {pairs.total} pairs"


def launch(
    processes: int,
    *,
    length: int = 64,
    placement: str = "zigzag",
    timeout: float = 300.0,
    fail: int | None = None,
) -> int:
    """Start processes, print what each of them says, and wait for their end.

    Args:
        processes: how many.
        length: ``T``.
        placement: one of :data:`~mha_book.sharding.placement.PLACEMENTS`.
        timeout: seconds that all may take together.
        fail: the number of a process that is to die midway; None for none.

    Returns:
        0 where all of them agree with one process; 1 where one failed, died or took too long.

    Raises:
        ValueError: a number is not a positive integer, or the length cannot be placed.
    """
    check_size(processes, "processes")
    make_placement(placement, length, processes)
    known = fail is None or 0 <= fail < processes
    check(known, "fail", f"the number of a process, 0 to {processes - 1}", fail)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        running: dict[int, Any] = {}
        for number in range(processes):
            command = [sys.executable, "-m", "mha_book.sharding.demo", "--number", str(number)]
            command += ["--processes", str(processes), "--port", str(port)]
            command += ["--length", str(length), "--placement", placement]
            command += [] if fail is None else ["--fail", str(fail)]
            with (Path(folder) / f"{number}").open("w") as said:
                running[number] = subprocess.Popen(
                    command, env=env, stdout=said, stderr=subprocess.STDOUT
                )
        complaint = _watch(running, start + timeout)
        for number in range(processes):
            lines = (Path(folder) / f"{number}").read_text(encoding="utf8").splitlines()
            kept = [line for line in lines if line.startswith("process ")]
            print("\n".join(kept if kept or not complaint else lines[-3:]))
    seconds = time.monotonic() - start
    print(complaint or f"{processes} processes agree with one, after {seconds:.0f} s", flush=True)
    return 1 if complaint else 0


def _watch(running: dict[int, Any], deadline: float) -> str:
    """Wait until all have ended, or one has failed; return what went wrong, or nothing."""
    complaint = ""
    while not complaint and any(process.poll() is None for process in running.values()):
        failed = [n for n, process in running.items() if process.poll()]
        if failed:
            waited, end = time.monotonic(), time.monotonic() + GRACE
            while time.monotonic() < end and any(p.poll() is None for p in running.values()):
                time.sleep(0.05)
            late = [n for n, process in running.items() if process.poll() is None]
            took = time.monotonic() - waited
            complaint = f"process {failed[0]} died (exit code {running[failed[0]].returncode}): "
            complaint += f"the others were ended {took:.0f} s later"
            complaint += f", of them {late} while they waited for it" if late else ""
        elif time.monotonic() > deadline:
            complaint = "the processes took too long and were ended"
        else:
            time.sleep(0.05)
    for process in running.values():
        if process.poll() is None:
            process.kill()
            process.wait()
    failed = [n for n, process in running.items() if process.returncode]
    return complaint or (f"process {failed[0]} failed" if failed else "")


def _end_with(parent: int) -> None:
    """End when the process that started this one has, and nobody watches over it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _take_part(number: int, processes: int, port: int, length: int, name: str, fail: Any) -> None:
    """Be one process of the ring."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", processes, number, heartbeat_timeout_seconds=HEARTBEAT
    )
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
        devices=MeshSizes(sequence=processes), placement=placement, upper=0, bytes_per_number=4,
    )  # fmt: skip
    said = f"process {number}: {describe(placement, number)}, sends {plan.sent_bytes} bytes"
    print(said, flush=True)

    def both(attention: Any) -> Any:
        def call(query: Any, key: Any, value: Any, d_output: Any) -> Any:
            output, pull = jax.vjp(attention, query, key, value)
            return output, *pull(d_output)

        return jax.jit(call)

    def over(*x: Any) -> Any:
        return ring_attention(*x, mesh=mesh, axes=axes, placement=placement, is_causal=True)

    found = both(over)(*placed)
    jax.block_until_ready(found)
    if number == fail:
        print(f"process {number}: dies here", flush=True)
        os._exit(9)
    again = both(over)(*placed)
    alone = both(lambda *x: attend(*x, is_causal=True))(*map(jnp.asarray, whole))
    own = placement.positions[number]
    worst = max(
        float(np.abs(np.asarray(mine.addressable_shards[0].data) - np.asarray(x)[:, own]).max())
        for mine, x in zip(again, alone, strict=True)
    )
    print(f"process {number}: output and gradients differ by at most {worst:.0e}", flush=True)
    check(worst < TOLERANCE, "ring", f"what one process computes, to {TOLERANCE:.0e}", worst)
    jax.distributed.shutdown()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the top of this module."""
    parser = argparse.ArgumentParser(prog="python -m mha_book.sharding.demo")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="positions of the sequence")
    parser.add_argument("--placement", choices=PLACEMENTS, default="zigzag")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for all of them")
    parser.add_argument("--fail", type=int, help="the number of a process that is to die")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    shared = given.length, given.placement
    if given.number is not None:
        _take_part(given.number, given.processes, given.port, *shared, given.fail)
        return 0
    return launch(
        given.processes, length=given.length, placement=given.placement, timeout=given.timeout,
        fail=given.fail,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
