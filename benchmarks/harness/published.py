"""What the makers of accelerators publish of them: sizes of memory, and rates.

Nothing here was measured by this project. A bandwidth is the largest that a maker states, so that a
time which follows from it is a lower bound. Arithmetic is of bfloat16 without sparsity.

References:
    Google, Cloud TPU documentation, pages on v5e, v5p and v6e, 2025: large memory, bandwidth,
    arithmetic, matrix units.  JAX, ``get_tpu_info_for_chip`` of ``jax.experimental.pallas.tpu``:
    fast memory and the side of a matrix unit.
    NVIDIA, data sheet of H100 (SXM; it states arithmetic with sparsity, twice what is here); HGX
    B200.  OpenXLA, ``xla/backends/gpu/target_config/specs``: cores, shared memory, L2 cache.
"""

from typing import NamedTuple


class Chip(NamedTuple):
    """What is published of an accelerator."""

    name: str  # in words
    memory: float  # bytes of its large memory
    bytes_per_s: float  # of the large memory
    flops_per_s: float  # of matrix products in bfloat16, dense
    cores: int  # that have a fast memory of their own
    fast: int  # bytes of the fast memory of a core
    cache: int  # bytes of a cache between the large memory and all cores
    unit: str  # what multiplies matrices, in words

    @property
    def corner(self) -> float:
        """Operations to a byte at which arithmetic and the large memory take equally long."""
        return self.flops_per_s / self.bytes_per_s

    def least_bytes(self, arguments: int, outputs: int, temporaries: int) -> int:
        """Bytes that a program moves to or from the large memory at least.

        What comes in is read and what goes out is written, once; what is set aside is written and
        read. Of all that the cache may keep as much as it holds, written and never read back.
        """
        moved = arguments + outputs + 2 * temporaries
        return max(arguments, moved - 2 * self.cache)


CHIPS = {
    "v5e": Chip("TPU v5e", 16e9, 819e9, 197e12, 1, 128 * 2**20, 0, "4 arrays of 128 × 128"),
    "v5p": Chip("TPU v5p", 95e9, 2765e9, 459e12, 2, 64 * 2**20, 0, "8 arrays of 128 × 128"),
    "v6e": Chip("TPU v6e", 32e9, 1640e9, 918e12, 1, 128 * 2**20, 0, "2 arrays of 256 × 256"),
    "h100": Chip("H100", 80e9, 3350e9, 989e12, 132, 228 * 2**10, 50 * 2**20, "4 tensor cores"),
    "b200": Chip("B200", 192e9, 8000e9, 2250e12, 148, 228 * 2**10, 132_644_864, "4 tensor cores"),
}
"""The accelerators that programs of this book are compiled for."""

LINKS = {"v5e": 50e9, "v5p": 100e9, "v6e": 100e9, "h100": 450e9, "b200": 900e9}
"""Bytes a second that a chip sends to its neighbor in a ring, one way.

Of a TPU by one of its links: Google states what all links of a chip carry in both directions, 400,
1200 and 800 GB/s of v5e, v5p and v6e, which have 4, 6 and 4 links. Of a GPU by all of its links to
the switch between them, 900 and 1800 GB/s in both directions (NVIDIA). Austin et al., How to Scale
Your Model, 2025, part 2, work with a tenth less of a TPU's link: 45, 90 and 90 GB/s.
"""
