"""What training and generation survive: kills, full disks, closed folders, long runs.

    python -m experiments.faults --kills 50 --tokens 100000

Every run of training ends with the same bits as one that nothing happened to, or says why not; a
file that is there is whole. A soak writes tokens through the ring of a windowed cache and counts
programs that were compiled and memory.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.shared import provenance
from mha_book.models import smollm2
from mha_book.multihead.parameters import init_multi_head
from mha_book.storage import load_arrays, seal, write_atomic

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "tests" / "data" / "faults.json"
TRAIN = (sys.executable, "-m", "tests.experiments.training_run")


def start(checkpoint: Path, **options: Any) -> subprocess.Popen[str]:
    """A process that trains a tiny model, and goes on from its checkpoint if it has one."""
    return subprocess.Popen(
        [*TRAIN, str(checkpoint)], cwd=ROOT, text=True, stdout=subprocess.DEVNULL, **options
    )


def bits(checkpoint: Path) -> dict[str, bytes]:
    """The arrays of a checkpoint, which is whole."""
    return {name: array.tobytes() for name, array in load_arrays(checkpoint)[0].items()}


def killed(folder: Path, kills: int, wanted: dict[str, bytes], seed: int) -> dict[str, int]:
    """Kill training at random moments, so many times; each run ends as the whole one did."""
    draw = random.Random(seed)
    counts = dict.fromkeys(("kills", "runs", "checkpoints_read", "partial_files", "differing"), 0)
    began = time.monotonic()
    start(folder / "timed").wait()
    usual = time.monotonic() - began
    while counts["kills"] < kills:
        path = folder / f"run-{counts['runs']}"
        for _ in range(6):
            run = start(path)
            try:
                run.wait(draw.uniform(0.5, 1.1) * usual)
                break
            except subprocess.TimeoutExpired:
                run.send_signal(signal.SIGKILL)
                run.wait()
                counts["kills"] += 1
            if path.exists():
                bits(path)
                counts["checkpoints_read"] += 1
        else:
            assert start(path).wait() == 0
        counts["runs"] += 1
        counts["partial_files"] += len([*folder.glob(f"{path.name}.*.partial")])
        counts["differing"] += bits(path) != wanted
    return counts


def full_disk(folder: Path, wanted: dict[str, bytes]) -> dict[str, Any]:
    """Train on a file system that is too small; then, with room, on from what is there."""
    place = folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        filler = place / "filler"
        if is_mounted:
            filler.write_bytes(b"x" * (2 * 2**20 - 8192))
            run = start(place / "run", stderr=subprocess.PIPE)
        else:  # no right to mount: the largest file of the process is smaller than a checkpoint
            run = start(place / "run", stderr=subprocess.PIPE, preexec_fn=small_files)
        said = run.communicate()[1]
        filler.unlink(missing_ok=True)
        left = sorted(path.name for path in place.iterdir())
        again = start(place / "run").wait()
        return {
            "kind": "tmpfs" if is_mounted else "limit of a file's size",
            "status": run.returncode,
            "said": said.strip().splitlines()[-1].split("/")[0][:80],
            "left_behind": left,
            "resumed_to_the_same_bits": again == 0 and bits(place / "run") == wanted,
        }
    finally:
        if is_mounted:
            subprocess.run(["umount", str(place)], check=True)


def small_files() -> None:
    """Let this process write no file of more than 8 KB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


def read_only(folder: Path) -> dict[str, Any]:
    """Train into a folder that no file can be made in (what is no folder, where root writes)."""
    place = folder / "closed"
    if os.geteuid():
        place.mkdir(mode=0o555)
    else:
        place.write_text("")  # root writes into every folder
    run = start(place / "run", stderr=subprocess.PIPE)
    said = run.communicate()[1]
    return {"status": run.returncode, "said": said.strip().splitlines()[-1].partition(":")[0]}


def two_writers(folder: Path, wanted: dict[str, bytes]) -> dict[str, Any]:
    """Two processes train the same run into one file."""
    runs = [start(folder / "shared") for _ in range(2)]
    statuses = [run.wait() for run in runs]
    return {"statuses": statuses, "same_bits": bits(folder / "shared") == wanted}


def soak(tokens: int, window: int = 31) -> dict[str, Any]:
    """Write so many tokens through the ring of a windowed cache."""
    config = smollm2.CONFIG._replace(
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, d_model=16, vocab_size=97
    )
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) * 0.3, jnp.float32)

    layers = tuple(
        smollm2.SmolLM2Layer(
            jnp.ones(16), init_multi_head(number, 16, 4, num_kv_heads=2), jnp.ones(16),
            draw(16, 24), draw(16, 24), draw(24, 16),
        )
        for number in range(2)
    )  # fmt: skip
    params = smollm2.SmolLM2Params(draw(97, 16), layers, jnp.ones(16))
    caches = smollm2.init_caches(2, window + 1, window=window, config=config)

    def write(params: Any, token: Any, caches: Any, key: Any) -> Any:
        logits, caches = smollm2.decode_step(params, token, caches, config=config)
        return jax.random.categorical(key, logits).astype(jnp.int32), logits, caches

    step = jax.jit(write, donate_argnums=2)
    token, programs, memory = jnp.array([0, 1], jnp.int32), [], []
    began = time.monotonic()
    finite = True
    for number in range(tokens):
        token, logits, caches = step(params, token, caches, jax.random.key(number))
        if number in (tokens // 10, tokens // 2, tokens - 1):
            finite = finite and bool(jnp.isfinite(logits).all())
            programs.append(step._cache_size())
            memory.append(resident())
    return {
        "tokens": tokens, "window": window, "programs": programs, "resident_MB": memory,
        "growth_MB": round(memory[-1] - memory[0], 1), "finite": finite,
        "positions_reached": int(caches[0].lengths[0]),
        "tokens_per_second": round(tokens / (time.monotonic() - began)),
    }  # fmt: skip


def resident() -> float:
    """The memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6, 1)


def main(given: list[str] | None = None) -> dict[str, Any]:
    """Run everything that the command line asks for, and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(given)
    folder = Path(tempfile.mkdtemp())
    try:
        assert start(folder / "whole").wait() == 0
        wanted = bits(folder / "whole")
        parts: dict[str, Callable[[], Any]] = {
            "two_writers": lambda: two_writers(folder, wanted),
            "read_only": lambda: read_only(folder),
            "full_disk": lambda: full_disk(folder, wanted),
            "soak": lambda: soak(options.tokens),
            "killed": lambda: killed(folder, options.kills, wanted, options.seed),
        }
        found = {}
        for name, part in parts.items():
            found[name] = part()
            print(name, found[name], flush=True)
    finally:
        shutil.rmtree(folder)
    document = seal({"provenance": provenance(seeds={"kills": options.seed}), **found})
    write_atomic(options.output, (json.dumps(document, indent=1) + "\n").encode())
    return document


if __name__ == "__main__":
    main()
