"""Starting several processes on one machine, joining them, and ending them when one has died.

:func:`launch_processes` starts a command once for each process, prints what they say and watches
over them. Each of them enters :func:`joined`: from there on :func:`jax.devices` has the devices of
all, and Gloo carries what they send to each other on a CPU.

A process that dies leaves the others waiting for what it was to send. Some notice by a broken
connection and end themselves with :data:`LOST`; the rest is ended by the one that started them,
within :data:`GRACE` seconds of the death. Should that one end itself, so do they; and where nobody
watches, JAX gives up a process that has not been heard of for :data:`HEARTBEAT` seconds.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed

from mha_book._checks import check, check_number, check_size

GRACE = 5
"""Seconds that the other processes have after one has died, before they are ended."""

HEARTBEAT = 10
"""Seconds without a sign of life after which a process is given up by the others."""

LOST = 75
"""The exit code of a process that ends because what it computes with others has failed."""


def launch_processes(
    module: str,
    processes: int,
    arguments: Sequence[str] = (),
    *,
    timeout: float,
    done: str,
    fail: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Start a module as several processes, print what each of them says, and wait for their end.

    Each is given ``--number``, ``--processes`` and ``--port`` besides the arguments, and of what it
    prints the lines that begin with "process" are shown. All together may take ``timeout`` seconds;
    the process with the number ``fail`` is to :func:`die`; ``done`` is said where all ended well.
    Returns 0 then, 1 where one failed, died or took too long.
    """
    check_size(processes, "processes")
    check_number(timeout, "timeout", "a positive number of seconds", positive=True)
    known = fail is None or 0 <= fail < processes
    check(known, "fail", f"the number of a process, 0 to {processes - 1}", fail)
    arguments = [*arguments, *([] if fail is None else ["--fail", str(fail)])]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    env |= environment or {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        running: dict[int, Any] = {}
        for number in range(processes):
            command = [sys.executable, "-m", module, "--number", str(number)]
            command += ["--processes", str(processes), "--port", str(port), *arguments]
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
    all_of_them = "1 process" if processes == 1 else f"{processes} processes"
    print(complaint or f"{all_of_them} {done}, after {seconds:.0f} s", flush=True)
    return 1 if complaint else 0


def process_parser(module: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for all of them")
    parser.add_argument("--fail", type=int, help="the number of a process that is to die")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser


def die(number: int) -> None:
    """End this process at once and without a word to the others, to see what becomes of them."""
    print(f"process {number}: dies here", flush=True)
    os._exit(9)


def _watch(running: dict[int, Any], deadline: float) -> str:
    """Wait until all have ended, or one has failed; return what went wrong, or nothing."""
    failed: dict[int, int] = {}  # exit codes, in the order of the deaths
    first, late = 0.0, False
    while any(process.poll() is None for process in running.values()):
        now = time.monotonic()
        failed |= {n: p.poll() for n, p in running.items() if p.poll() and n not in failed}
        first = first or (now if failed else 0.0)
        late = not failed and now > deadline
        if late or (failed and now > first + GRACE):
            break
        time.sleep(0.05)
    took = time.monotonic() - first if first else 0.0  # or all were gone when they were looked at
    waiting = [n for n, process in running.items() if process.poll() is None]
    for n in waiting:
        running[n].kill()
        running[n].wait()
    if late:
        return "the processes took too long and were ended"
    failed |= {n: p.poll() for n, p in running.items() if p.poll() and n not in {*failed, *waiting}}
    if not failed:
        return ""
    # Who ends because another is gone is not the one that died: nor does JAX's own abort mean that.
    died = next((n for n, code in failed.items() if code not in (LOST, -signal.SIGABRT)), None)
    died = next(iter(failed)) if died is None else died
    complaint = f"process {died} died (exit code {failed[died]}): the others were ended "
    complaint += f"{took:.0f} s later"
    return complaint + (f", of them {waiting} while they waited for it" if waiting else "")


@contextlib.contextmanager
def joined(number: int, processes: int, port: int) -> Iterator[None]:
    """Be one of several processes that compute together, on CPUs; the first listens at ``port``.

    Where what they compute together fails, as it does when another is gone, the process says so and
    ends with :data:`LOST`: nothing else could be computed together from there on.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", processes, number, heartbeat_timeout_seconds=HEARTBEAT
    )
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        why = str(error).splitlines()[0][:200]
        print(f"process {number}: ends, for a computation with the others failed: {why}")
        sys.stdout.flush()
        os._exit(LOST)  # the usual end waits for the others
    jax.distributed.shutdown()


def meet(name: str, seconds: int = 120) -> None:
    """Wait until all processes are here, each place by its name once; of one process, nothing.

    Gloo waits half a minute for another process and no longer. Compiling may take one longer than
    another, so that they should meet before they run what they have compiled.
    """
    client = distributed.global_state.client
    if client is not None:
        client.wait_at_barrier(name, 1000 * seconds)


def _end_with(parent: int) -> None:
    """End when the process that started this one has, and nobody watches over it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
