"""What there is to do and what the machine could do: exact work counts, measured rates.

Shapes: T query length, S key length, H key width, C value width.
"""

import statistics

import jax

from harness.timing import CLOCKS, interleave


def attention_flops(pairs, heads, key_width, value_width, *, backward) -> int:
    """Matmul FLOPs of attention over the visible pairs: 2(H + C) a pair and head.

    The backward pass has twice as many matmuls (dV and dP, dQ and dK); what an
    implementation computes a second time, or computes and masks, is not counted as work.
    """
    return (3 if backward else 1) * 2 * pairs * heads * (key_width + value_width)


def measure_rates(dtype, *, quick=False, clock="wall") -> dict[str, float | int]:
    """The limits of this process: P, the rate of a large matmul, and W, of moving memory.

    W is the rate of an update in place (each byte read once and written once).  The rate
    of a copy into newly allocated memory stands beside it: on a CPU the page faults of
    the new memory make it several times lower.
    """
    on_cpu = jax.default_backend() == "cpu"
    matmul_size, copy_mib = (256, 4) if quick else (2048, 64) if on_cpu else (8192, 1024)
    rng_key = jax.random.key(0)
    square = jax.random.normal(rng_key, (matmul_size, matmul_size), dtype)
    flat = jax.random.normal(rng_key, (copy_mib * 2**20 // square.dtype.itemsize,), dtype)
    moved = 2 * flat.nbytes
    multiply, copy = jax.jit(jax.numpy.matmul), jax.jit(jax.numpy.copy)
    update = jax.jit(lambda x: x + 1, donate_argnums=0)
    buffer = [copy(flat)]

    def stream():
        buffer[0] = update(buffer[0])
        return buffer[0]

    times = interleave(
        {"matmul": lambda: multiply(square, square), "copy": lambda: copy(flat), "stream": stream},
        rounds=2 if quick else 7,
        clock=CLOCKS[clock],
    )
    median = {name: statistics.median(seconds) for name, seconds in times.seconds.items()}
    return {
        "matmul_flops_per_s": 2 * matmul_size**3 / median["matmul"],
        "stream_bytes_per_s": moved / median["stream"], "copy_bytes_per_s": moved / median["copy"],
        "matmul_size": matmul_size, "copy_mib": copy_mib,
    }  # fmt: skip
