"""What the makers of accelerators publish of them: sizes of memory, and rates.

The numbers and their sources are in ``published.json``; nothing there was measured by this project.
A bandwidth is the largest that a maker states, so that a time which follows from it is a lower
bound. Arithmetic is of bfloat16 without sparsity.
"""

import json
from pathlib import Path
from typing import NamedTuple


class Chip(NamedTuple):
    """What is published of an accelerator, one GPU or one TPU chip."""

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


_TOLD = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf8"))
COMPILED = tuple(_TOLD["compiled"])
"""The chips that programs of this book are compiled for."""
LINKS, REACH, NETWORK = (
    {name: chip.pop(what) for name, chip in _TOLD["chips"].items()}
    for what in ("link", "joins", "network")
)
CHIPS = {name: Chip(**chip) for name, chip in _TOLD["chips"].items()}
