"""Measure everything and store it: ``python -m tests.independent [FILE]``."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from tests.independent.measures import SEED, measure
from tests.independent.models import input_digests

ROOT = Path(__file__).parents[2]
PACKAGES = ("numpy", "safetensors", "tokenizers", "torch")


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "not recorded"


def main(path):
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    told = json.loads((ROOT / "book/data/explorer.json").read_text(encoding="utf8"))
    rows = []
    for entry in measure({name: x["text"] for name, x in told["sentences"].items()}):
        rows.append(entry)
        print(f"{time.process_time():5.0f} s  {entry['name']}: {len(entry['theirs'])}", flush=True)
    changes = ("status", "--porcelain", "--untracked-files=no", "--", "tests/independent")
    document = {"rows": rows, "processor seconds": round(time.process_time())}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    block = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python -m tests.independent",
        "git": {"commit": git("rev-parse", "HEAD"), "dirty": bool(git(*changes))},
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "device": "cpu",
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "seeds": f"numpy.random.default_rng({SEED}); the layer of the gradients: 5",
        "inputs": input_digests(),
        "payload_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
    }
    lines = ",\n".join("  " + json.dumps(entry) for entry in rows)
    seconds = document["processor seconds"]
    path.write_text(
        f'{{\n "provenance": {json.dumps(block)},\n "rows": [\n{lines}\n ],\n'
        f' "processor seconds": {seconds}\n}}\n',
        encoding="utf8",
    )
    jax = [
        name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib", "experiments")
    ]
    assert not jax, "a second hand reads no JAX, and nothing that the first one wrote"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "book" / "data" / "independent.json")
