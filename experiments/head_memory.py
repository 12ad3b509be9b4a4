"""Where the time of attention goes when a width is cut into more heads, and what memory costs.

Attention of width 512 over 512 positions with 1 to 64 heads, in processes of its own: by the
default of the C library, and with the library told to keep the memory that it has.
"""

import functools
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from benchmarks.harness.provenance import cpu_model
from experiments.shared import ROOT, Run, experiment
from mha_book import attend

SEEDS = "inputs: default_rng(0)"
KEPT = {  # glibc: nothing straight from the operating system, nothing given back
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",
}


# processes: of each kind, taking turns; rounds: in each process; least_seconds: of processor
# time in one round.
Sizes = fields(
    heads=(1, 2, 4, 8, 16, 32, 64), width=512, length=512, processes=3, rounds=7,
    least_seconds=0.03,
)  # fmt: skip
QUICK = Sizes((1, 4), width=16, length=16, processes=1, rounds=2, least_seconds=0.0)


def programs(sizes: Sizes) -> dict[str, tuple[Callable[..., Any], list[jax.Array]]]:
    """Name -> what is run: a compiled function and its arguments."""
    rng, attention = np.random.default_rng(0), functools.partial(attend, implementation="reference")
    found: dict[str, Any] = {}
    for n in sizes.heads:
        shape = (1, n, sizes.length, sizes.width // n)
        operands = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(3)]
        found[f"attention {n}"] = (jax.jit(attention), operands)
    return found


def measure(sizes: Sizes) -> dict[str, Any]:
    prepared = programs(sizes)
    calls = {}
    for name, (function, given) in prepared.items():
        for _ in range(2):
            jax.block_until_ready(function(*given))
        once = _one(function, given, 1)[0]
        calls[name] = max(1, round(sizes.least_seconds / max(once, 1e-6)))
    found: dict[str, Any] = {name: {"seconds": [], "faults": []} for name in prepared}
    for _ in range(sizes.rounds):
        for name, (function, given) in prepared.items():
            seconds, faults = _one(function, given, calls[name])
            found[name]["seconds"].append(seconds)
            found[name]["faults"].append(faults)
    return found


def _one(function: Callable[..., Any], given: tuple[jax.Array, ...], calls: int) -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(calls):
        jax.block_until_ready(function(*given))
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds / calls, (after.ru_minflt - before.ru_minflt) / calls


def run_process(sizes: Sizes, kept: bool) -> dict[str, Any]:
    """What a process of its own measures, with the memory kept or by the default."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.head_memory", "--process", json.dumps(sizes)],
        env=others | {"JAX_PLATFORMS": "cpu"} | (KEPT if kept else {}), cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


if __name__ == "__main__" and sys.argv[1:2] == ["--process"]:
    print(json.dumps(measure(Sizes(*json.loads(sys.argv[2])))))
    sys.exit()


@experiment("head-memory.json", Sizes(), QUICK, digits=4, seeds=SEEDS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {"default": {}, "kept": {}}
    for turn in range(sizes.processes):
        for kind in rows:
            for name, lists in run_process(sizes, kind == "kept").items():
                row = rows[kind].setdefault(name, {"seconds": [], "faults": []})
                for what, values in lists.items():
                    row[what] += values
            run.report(f"process {turn + 1} of {sizes.processes}, {kind}")
    machine = {"libc": " ".join(platform.libc_ver()), "processor": cpu_model()}
    return {"config": {**sizes._asdict(), "kept": KEPT}, "machine": machine, **rows}
