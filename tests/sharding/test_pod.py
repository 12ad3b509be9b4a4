"""Compiled for slices of TPU chips, not run: what is sent, and that it is sent meanwhile."""

import re
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec

from benchmarks.harness import compiled
from mha_book.sharding import MeshAxes, MeshSizes, compiled_transfers, plan_cost, ring_attention

pytestmark = pytest.mark.needs_libtpu

CHIPS, HEADS, LENGTH, WIDTH = 4, 4, 4096, 128
KINDS = "collective-permute-start|collective-permute-done|collective-permute|while|conditional"


def compile_ring(**options: Any) -> Any:
    mesh = compiled.mesh("v5e", {"ring": CHIPS})
    operand = ((HEADS, LENGTH, WIDTH), "bfloat16")

    def call(*x: jax.Array) -> jax.Array:
        return ring_attention(*x, mesh=mesh, axes=MeshAxes(sequence="ring"), **options)

    specs = [PartitionSpec(None, "ring", None)] * 3
    return compiled.compile_for(call, *[operand] * 3, mesh=mesh, specs=specs)


def order(text: str) -> list[list[str]]:
    """What each computation that sends something does, in the order of its schedule."""
    blocks = [re.findall(rf" ({KINDS})\(", block) for block in text.split("\n\n")]
    return [found for found in blocks if any("permute" in kind for kind in found)]


def test_written_out_every_step_sends_while_it_computes() -> None:
    text = compile_ring().as_text()
    (entry,) = order(text)
    start, done = "collective-permute-start", "collective-permute-done"
    assert entry.count(start) == 2 * (CHIPS - 1)
    assert _overlaps(entry, start, done)
    plan = plan_cost(
        batch=1, num_heads=HEADS, length=LENGTH, head_dim=WIDTH, devices=MeshSizes(sequence=CHIPS)
    )
    sent = {t.kind: (t.calls, t.operand_bytes) for t in plan.forward}
    assert compiled_transfers(text) == sent


def _overlaps(kinds: list[str], start: str, done: str) -> bool:
    """Whether there is arithmetic, a loop over blocks, between each start and its end."""
    waiting, worked = 0, True
    for kind in kinds:
        if kind == start:
            waiting, worked = waiting + 1, False
        elif kind == done:
            if not worked:
                return False
            waiting -= 1
        elif kind == "while":
            worked = True
    return waiting == 0
