"""What the chapter on programs for accelerators says of compiled programs."""

import math
import re

import jax
import jax.numpy as jnp

from mha_book import attend
from mha_book.attention.blocks import block_sizes

HEADS, WIDTH = 2, 64


def compiled(name, length):
    x = jax.ShapeDtypeStruct((HEADS, length, WIDTH), jnp.float32)
    function = jax.jit(lambda *x: attend(*x, is_causal=True, implementation=name))
    return function.lower(x, x, x).compile()


def largest_shape(text):
    shapes = re.findall(r"\b(?:pred|bf16|[fsu]\d+)\[([\d,]+)\]", text)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def test_blocks_store_no_array_of_pairs_and_the_reference_does():
    length = 2048
    sizes = block_sizes(1, length, length, HEADS, 1, position_dependent=True)
    blocks, reference = (compiled(name, length) for name in ("blockwise", "reference"))
    assert largest_shape(blocks.as_text()) == HEADS * sizes.queries * sizes.keys < length**2
    assert largest_shape(reference.as_text()) == HEADS * length**2
    rooms = [x.memory_analysis().temp_size_in_bytes for x in (blocks, reference)]
    assert rooms[0] < 4 * length**2 < rooms[1]
