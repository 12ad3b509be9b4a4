"""Attention over a ring of TPU chips, compiled and not run: what each chip holds and sends.

Eight heads of width 128 in bfloat16, the steps of the ring in a loop (``unroll=1``), for 16 to 256
chips of v5e and of v6e. libtpu compiles (``make accelerators-env``); nothing is run, and nothing
here is a time but that of compiling. No predictions were written down: the file says what a
compiler made, and the package's tests hold what it sends to formulas. Stores book/data/pods.json.
"""

import importlib.metadata
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from benchmarks.harness import compiled
from experiments.shared import Run, experiment
from mha_book.sharding import MeshAxes, compiled_transfers, ring_attention

SEEDS = "nothing is drawn"
NAME = "pods.json"
HEADS, WIDTH, LONGEST = 8, 128, 2**20


class Program(NamedTuple):
    target: str  # the generation of chips
    chips: int  # how many; a square
    length: int = LONGEST  # positions of the sequence
    is_causal: bool = True  # causal in zigzag placement, or no mask
    direction: str = "forward"  # "forward" or "with gradients"


PROGRAMS = (
    *(Program("v5e", chips) for chips in (16, 64, 256)),
    *(Program("v5e", 256, length) for length in (2**16, 2**18)),
    Program("v5e", 256, is_causal=False), Program("v5e", 256, direction="with gradients"),
    Program("v6e", 256), Program("v6e", 256, direction="with gradients"),
)  # fmt: skip


def compile_ring(program: Program) -> dict[str, Any]:
    side = round(program.chips**0.5)
    mesh = compiled.mesh(f"{program.target}:{side}x{side}", {"ring": program.chips})
    placement = "zigzag" if program.is_causal else "contiguous"

    def forward(*operands: jax.Array) -> jax.Array:
        return ring_attention(
            *operands, mesh=mesh, axes=MeshAxes(sequence="ring"), placement=placement,
            is_causal=program.is_causal, unroll=1,
        )  # fmt: skip

    def with_gradients(query: jax.Array, key: jax.Array, value: jax.Array, pull: jax.Array) -> Any:
        output, back = jax.vjp(forward, query, key, value)
        return output, back(pull)

    is_forward = program.direction == "forward"
    count = 3 if is_forward else 4
    start = time.perf_counter()
    found = compiled.compile_for(
        forward if is_forward else with_gradients,
        *[((HEADS, program.length, WIDTH), jnp.bfloat16)] * count,
        mesh=mesh,
        specs=[PartitionSpec(None, "ring", None)] * count,
    )
    seconds, text = time.perf_counter() - start, found.as_text()
    return {
        "program": program._asdict(), "bytes": compiled.memory(found)._asdict(),
        "transfers": compiled_transfers(text), "started": text.count(" collective-permute-start("),
        "seconds": seconds,
    }  # fmt: skip


@experiment(NAME, digits=4, seeds=SEEDS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    settings = {
        "heads": HEADS, "width": WIDTH, "dtype": "bfloat16", "unroll": 1,
        "libtpu": importlib.metadata.version("libtpu"),
        "notice": "compiled, not run: no chip was there",
    }  # fmt: skip
    rows = [compile_ring(program) for program in (PROGRAMS[:1] if run.quick else PROGRAMS)]
    return {"settings": settings, "programs": rows}
