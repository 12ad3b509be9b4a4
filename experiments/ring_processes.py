"""Ring attention over several processes on one machine: who holds what, and what is sent.

    python -m experiments.ring_processes --processes 4

starts as many processes, each a device of one ring, attends and differentiates, and holds each
process's part to what one process computes alone. With ``--fail 2`` process 2 dies on the way.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from experiments.processes import die, joined, launch_processes, meet, process_parser
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

MODULE = "experiments.ring_processes"
HEADS, KEY_HEADS, WIDTH, TOLERANCE = 4, 2, 8, 1e-5


def take_part(number: int, processes: int, length: int, name: str, fail: Any) -> None:
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
    meet("compiled")
    jax.block_until_ready(ring(*placed))
    if number == fail:
        die(number)
    again = ring(*placed)
    alone = both(lambda *x: attend(*x, is_causal=True))(*map(jnp.asarray, whole))
    own = placement.positions[number]
    worst = max(
        float(np.abs(np.asarray(mine.addressable_shards[0].data) - np.asarray(x)[:, own]).max())
        for mine, x in zip(again, alone, strict=True)
    )
    print(f"process {number}: output and gradients differ by at most {worst:.0e}", flush=True)
    check(worst < TOLERANCE, "ring", f"what one process computes, to {TOLERANCE:.0e}", worst)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the top of this module."""
    parser = process_parser(MODULE)
    parser.add_argument("--length", type=int, default=64, help="positions of the sequence")
    parser.add_argument("--placement", choices=PLACEMENTS, default="zigzag")
    given = parser.parse_args(arguments)
    shared = given.length, given.placement
    if given.number is not None:
        with joined(given.number, given.processes, given.port):
            take_part(given.number, given.processes, *shared, given.fail)
        return 0
    check_size(given.processes, "processes")
    make_placement(given.placement, given.length, given.processes)  # before anything starts
    options = ["--length", str(given.length), "--placement", given.placement]
    return launch_processes(
        MODULE, given.processes, options, timeout=given.timeout, done="agree with one",
        fail=given.fail,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
