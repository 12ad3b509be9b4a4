"""What the makers of accelerators publish of them: sizes of memory, and rates.

Nothing here was measured by this project. A bandwidth is the largest that a maker states, so that a
time which follows from it is a lower bound. Arithmetic is of bfloat16 without sparsity.

References:
    Google, Cloud TPU documentation, pages on v5e, v5p, v6e and TPU7x, 2025 and 2026: large memory,
    bandwidth, arithmetic, matrix units, links, data center network.  JAX,
    ``get_tpu_info_for_chip`` of ``jax.experimental.pallas.tpu``: fast memory and the side of a
    matrix unit.
    NVIDIA, data sheets of H100 and H200 (SXM; they state arithmetic with sparsity, twice what is
    here), HGX B200 (1,440 GB of its eight, 180 each), GB200 NVL72 and DGX B300 (a share of the
    system each).  OpenXLA,
    ``xla/backends/gpu/target_config/specs``: cores, shared memory, L2 cache.
    AMD, Instinct MI300X and MI355X.
"""

from typing import NamedTuple


class Chip(NamedTuple):
    """What is published of an accelerator."""

    name: str  # in words
    memory: float  # bytes of its large memory
    bytes_per_s: float  # of the large memory
    flops_per_s: float  # of matrix products in bfloat16, dense
    # Of those that programs are compiled for, and of TPU7x; 0 elsewhere.
    cores: int = 0  # that have a fast memory of their own
    fast: int = 0  # bytes of the fast memory of a core
    cache: int = 0  # bytes of a cache between the large memory and all cores
    unit: str = ""  # what multiplies matrices, in words

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
    "7x": Chip("TPU7x", 192e9, 7380e9, 2307e12, 2, 64 * 2**20, 0, "4 arrays of 256 × 256"),
    "h100": Chip("H100", 80e9, 3350e9, 989e12, 132, 228 * 2**10, 50 * 2**20, "4 tensor cores"),
    "h200": Chip("H200", 141e9, 4800e9, 989e12),
    "b200": Chip("B200", 180e9, 8000e9, 2250e12, 148, 228 * 2**10, 132_644_864, "4 tensor cores"),
    "gb200": Chip("GB200", 186e9, 8000e9, 2500e12),
    "b300": Chip("B300", 288e9, 8000e9, 2250e12),
    "mi300x": Chip("MI300X", 192e9, 5300e9, 1307e12),
    "mi355x": Chip("MI355X", 288e9, 8000e9, 2500e12),
}
"""The accelerators of this book, each one GPU or one TPU chip."""

COMPILED = ("v5e", "v5p", "v6e", "h100", "b200")
"""Those that programs of this book are compiled for."""

LINKS = {
    "v5e": 50e9, "v5p": 100e9, "v6e": 100e9, "7x": 100e9, "h100": 450e9, "h200": 450e9,
    "b200": 900e9, "gb200": 900e9, "b300": 900e9, "mi300x": 64e9, "mi355x": 76.8e9,
}  # fmt: skip
"""Bytes a second that a chip sends to its neighbor in a ring, one way.

Of a TPU by one of its links: Google states what all links of a chip carry in both directions, 400,
1200, 800 and 1200 GB/s of v5e, v5p, v6e and TPU7x, which have 4, 6, 4 and 6 links. Of an NVIDIA GPU
by all of its links to the switch between them, 900 (Hopper) and 1800 GB/s (Blackwell) in both
directions. Of an AMD GPU by one of the seven links to the others of its node, 128 and 153.6 GB/s in
both directions. Austin et al., How to Scale Your Model, 2025, part 2, work with a tenth less of a
TPU's link: 45, 90 and 90 GB/s.
"""

REACH = {
    "v5e": 256, "v5p": 8960, "v6e": 256, "7x": 9216, "h100": 8, "h200": 8, "b200": 8, "gb200": 72,
    "b300": 8, "mi300x": 8, "mi355x": 8,
}  # fmt: skip
"""How many chips these links join: a pod, a node, or a rack."""

NETWORK = {
    "v5e": 3.125e9, "v5p": 6.25e9, "v6e": 12.5e9, "7x": 12.5e9, "h100": 50e9, "h200": 50e9,
    "b200": 50e9, "gb200": 50e9, "b300": 100e9, "mi300x": 50e9, "mi355x": 50e9,
}  # fmt: skip
"""Bytes a second that a chip sends beyond these, one way: its share of the data center network.

Google states 6.4 Tb/s for the 256 chips of a pod of v5e, and 50, 100 and 100 Gb/s for a chip of
v5p, v6e and TPU7x. A GPU has an adapter of its own in the makers' systems: 400 Gb/s, of B300 800.
"""
