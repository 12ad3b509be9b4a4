"""A ring whose devices are processes: output and gradients are those of one, and Gloo sends them.

The test starts this module twice, each a device of the ring.
"""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import distributed
from jax.sharding import NamedSharding

from mha_book.attention.dispatch import attend
from mha_book.sharding import MeshAxes, make_placement, ring_attention
from mha_book.sharding.mesh import operand_specs

PROCESSES, LENGTH = 2, 48


def test_processes_agree_with_one() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    command, how = [sys.executable, "-m", __name__, address], {"text": True, "env": env}
    running = [
        subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, **how)
        for n in range(PROCESSES)
    ]
    said = [process.communicate(timeout=600)[1] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES, said


def take_part(number: int) -> None:
    mesh = jax.make_mesh((PROCESSES,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    axes, placement = MeshAxes(sequence="ring"), make_placement("zigzag", LENGTH, PROCESSES)
    order, sharding = placement.positions.reshape(-1), NamedSharding(mesh, operand_specs(3, axes))
    rng = np.random.default_rng(2017)
    whole = [rng.standard_normal((heads, LENGTH, 8)).astype(np.float32) for heads in (4, 2, 2, 4)]
    placed = [
        jax.make_array_from_callback(x.shape, sharding, lambda index, x=x: x[:, order][index])
        for x in whole
    ]

    def both(attention):
        def call(query, key, value, d_output):
            output, pull = jax.vjp(attention, query, key, value)
            return output, *pull(d_output)

        return jax.jit(call)

    options = {"mesh": mesh, "axes": axes, "placement": placement, "is_causal": True}
    ring = both(lambda *x: ring_attention(*x, **options)).lower(*placed).compile()
    # Gloo waits half a minute for another process, and compiling may take one longer than that.
    distributed.global_state.client.wait_at_barrier("compiled", 120_000)
    alone = both(lambda *x: attend(*x, is_causal=True))(*map(jnp.asarray, whole))
    for mine, x in zip(ring(*placed), alone, strict=True):
        own = np.asarray(x)[:, placement.positions[number]]
        np.testing.assert_allclose(mine.addressable_shards[0].data, own, atol=1e-5)


if __name__ == "__main__":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[1], PROCESSES, number := int(sys.argv[2]))
    take_part(number)
    jax.distributed.shutdown()
