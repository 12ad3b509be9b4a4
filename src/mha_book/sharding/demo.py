r"""Several processes on one machine, each a device of one ring: who holds what, and what is sent.

    python -m mha_book.sharding.demo --processes 4

starts as many processes, joins them by :func:`jax.distributed.initialize` (Gloo carries what they
send on a CPU), attends over the ring and its gradient, and holds each process's part to what one
process computes alone. The program is the one of :mod:`~mha_book.sharding.ring`: that its devices
lie in several processes is for :mod:`jax` to know.

A process that dies leaves the others waiting for what it was to send; ``--fail 2`` shows what
:mod:`~mha_book.sharding.processes` makes of it.
"""

import sys
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
from mha_book.sharding.processes import die, joined, launch_processes, meet, process_parser
from mha_book.sharding.ring import ring_attention

__all__ = ["describe", "launch"]

HEADS, KEY_HEADS, WIDTH, TOLERANCE = 4, 2, 8, 1e-5


def describe(placement: Placement, device: int) -> str:
    """Return in words how many pairs a device computes, and of which positions.

    Args:
        placement: the placement.
        device: the number of the device.

    Returns:
        One line.

    Example:
        >>> describe(make_placement("zigzag", 16, 2), 0)
        'positions 0-3 12-15, 68 of 136 pairs'
    """
    pairs = balance(placement, upper=0)
    held = placement.describe(device)
    return f"{held}, {pairs.by_device[device]} of {pairs.total} pairs"


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
    arguments = ["--length", str(length), "--placement", placement]
    return launch_processes(
        "mha_book.sharding.demo",
        processes,
        arguments,
        timeout=timeout,
        done="agree with one",
        fail=fail,
    )


def _take_part(number: int, processes: int, length: int, name: str, fail: Any) -> None:
    """Be one process of the ring."""
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
    parser = process_parser("mha_book.sharding.demo")
    parser.add_argument("--length", type=int, default=64, help="positions of the sequence")
    parser.add_argument("--placement", choices=PLACEMENTS, default="zigzag")
    given = parser.parse_args(arguments)
    shared = given.length, given.placement
    if given.number is not None:
        with joined(given.number, given.processes, given.port):
            _take_part(given.number, given.processes, *shared, given.fail)
        return 0
    return launch(
        given.processes, length=given.length, placement=given.placement, timeout=given.timeout,
        fail=given.fail,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
